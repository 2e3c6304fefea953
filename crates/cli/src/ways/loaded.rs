//! Kernels loaded as WebAssembly while the card runs, for measurements.

use anyhow::{Context as _, Result};
use remora::Device;
use remora::kernel::wasm::Module;
use remora::kernel::{Deployment, Grant};

/// GET, as WebAssembly: `guest/rust/examples/get.rs`, built.
const GET: &[u8] = include_bytes!("../../../../guest/built/get.wasm");
/// The op-code of the first kernel; the others follow.
pub(crate) const FIRST: u64 = 0x1_0000;

/// Loads GET `count` times, each a module of its own.
pub(crate) fn load(device: &Device, grants: &[Grant], count: u64) -> Result<()> {
    for i in 0..count {
        let module = Module::load(GET).context("cannot load the kernel `get.wasm`")?;
        let deployment = Deployment::new(format!("get.wasm {i}"), grants);
        device.load_kernel(FIRST + i, deployment, &module)?;
    }
    Ok(())
}
