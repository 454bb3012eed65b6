"""What sandboxes use and what happened in them: collected now and then, kept within bounds."""
