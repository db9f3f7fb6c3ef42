"""Token masks on a device: tables of mask rows, a pool that caches rows, and the kernel that applies masks."""
