//! The index: a cuckoo hash table.
