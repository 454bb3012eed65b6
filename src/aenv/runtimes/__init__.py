"""The seam to virtual machine monitors: `base` says what one can do, the others do it."""
