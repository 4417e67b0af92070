"""All event loops and threads of a process as one, for ``scope="process"``: the view, the driver, the critical section."""
