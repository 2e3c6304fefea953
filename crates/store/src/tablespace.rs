//! Tablespaces: named parts of the store, each with its quota and policy.
