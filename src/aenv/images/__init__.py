"""What a guest boots from: the kernel and initramfs, and the `base` root file system."""
