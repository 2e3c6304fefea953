//! The crate's own example, unmodified: build.rs finds it where cargo has put the crate's source.

include!(env!("IBVERBS_LOOPBACK_EXAMPLE"));
