//! The bytes that the store lives in.
