namespace tracea {

// Descriptor of a matrix at an address in shared memory, whose bits from 24 on name a block of the cluster.
DEV u64 descriptor_at(u32 address, u64 bits) { return bits | (u64)(address >> 4 & 0x3fff); }

}  // namespace tracea
