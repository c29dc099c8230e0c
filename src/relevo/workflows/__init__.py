"""Workflows: jobs that run after and beside each other, and pass their results on.

    fetch.s(url) | parse.s() | save.s()                   one after the other
    group(parse.s(page) for page in pages)                all at once
    group(parse.s(page) for page in pages) | total.s()    all at once, then one with the list of their results

An expression like these is a value (`steps`): nothing is sent while it is written, and it can be stored, nested in
others and used again. `graph` turns it into a flat list of jobs and what each of them waits for, `storing`
sends those to the server, and `workflow` is the handle of the stored workflow.
"""
