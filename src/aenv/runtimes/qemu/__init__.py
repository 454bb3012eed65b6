"""Virtual machines by QEMU's `microvm` machine, with KVM or by emulation (TCG)."""
