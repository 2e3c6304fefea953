//! The crate's own example, unmodified: build.rs finds it in the crate's source.

include!(env!("IBVERBS_LOOPBACK_EXAMPLE"));
