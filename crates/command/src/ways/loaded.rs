//! Kernels loaded as WebAssembly while the card runs, for measurements.

use anyhow::{Result, anyhow};
use remora::Device;
use remora::kernel::{Deployment, Grant, Loader, ModuleLimits};

/// GET, as WebAssembly: `guest/rust/examples/get.rs`, built.
const GET: &[u8] = include_bytes!("../../../../guest/built/get.wasm");
/// The op-code of the first kernel; the others follow.
pub const FIRST: u64 = 0x1_0000;

/// Loads GET `count` times, each a module of its own.
pub(super) fn load(loader: Loader, device: &Device, grants: &[Grant], count: u64) -> Result<()> {
    for i in 0..count {
        let module = loader(GET, ModuleLimits::default(), None);
        let module =
            module.map_err(|error| anyhow!("cannot load the kernel `get.wasm`: {error}"))?;
        let deployment = Deployment::new(format!("get.wasm {i}"), grants);
        device.load_kernel(FIRST + i, deployment, &*module)?;
    }
    Ok(())
}
