"""How long requests wait for a free server: closed forms, and tables of them."""
