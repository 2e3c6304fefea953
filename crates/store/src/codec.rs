//! How a value is stored: as it is, or compressed.
