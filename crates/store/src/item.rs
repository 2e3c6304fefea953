//! An item: a key and its value, which say themselves whether they are whole.
