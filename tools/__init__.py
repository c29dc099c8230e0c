"""What developers run now and then; `./dev` calls it."""
