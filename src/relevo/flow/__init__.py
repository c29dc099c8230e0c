"""Workflows: jobs that run after and beside each other, and hand on what they give.

    fetch.s(url) | parse.s() | save.s()                   one after the other
    group(parse.s(page) for page in pages)                all at once
    group(parse.s(page) for page in pages) | total.s()    all at once, then one with the list of what they gave

An expression like these is a value (`steps`): nothing is sent while it is written, and it can be kept, put into others
and used again. `graph` turns it into a flat list of jobs and what each of them waits for, `storing`
puts those on the server, and `workflow` is what its maker holds afterwards.
"""

from relevo.flow.steps import Chain, Flow, Group, Step, chain, group
from relevo.flow.workflow import Member, Workflow, WorkflowInfo, WorkflowProgress

__all__ = [
    "Chain",
    "Flow",
    "Group",
    "Member",
    "Step",
    "Workflow",
    "WorkflowInfo",
    "WorkflowProgress",
    "chain",
    "group",
]
