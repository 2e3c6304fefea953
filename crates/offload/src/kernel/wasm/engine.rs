//! The compiler, and the functions that every module may import.

use std::sync::OnceLock;

use wasmtime::{Config, Engine, Linker, OptLevel};

use super::error::LoadError;
use super::guest::Guest;
use super::imports;
use super::limits::MEMORY_MAX;

/// Bytes of native stack for a guest; host functions that it calls use a little more.
const GUEST_STACK: usize = 64 << 10;
/// Bytes of the stack of an instance that can be suspended.
const STACK: usize = 256 << 10;

/// What all modules of the process share. It holds no state of a module.
pub(super) struct Host {
    pub(super) engine: Engine,
    /// For instances that run as a plain call.
    pub(super) plain: Linker<Guest>,
    /// For instances that can be suspended.
    pub(super) suspending: Linker<Guest>,
    /// For instances that are bound to streams.
    pub(super) tapping: Linker<Guest>,
}

impl Host {
    /// The host of this process, created when the first module is loaded.
    pub(super) fn get() -> Result<&'static Host, LoadError> {
        static HOST: OnceLock<Result<Host, String>> = OnceLock::new();
        let host = HOST.get_or_init(|| Host::new().map_err(|error| format!("{error:#}")));
        host.as_ref().map_err(|error| LoadError::Engine(error.clone()))
    }

    fn new() -> wasmtime::Result<Host> {
        let engine = Engine::new(&config())?;
        let linker = |offer: fn(&mut Linker<Guest>) -> wasmtime::Result<()>| {
            let mut linker = Linker::new(&engine);
            offer(&mut linker).map(|()| linker)
        };
        let plain = linker(imports::offer_plain)?;
        let suspending = linker(imports::offer_suspending)?;
        let tapping = linker(imports::offer_tapping)?;
        Ok(Host { engine, plain, suspending, tapping })
    }
}

fn config() -> Config {
    let mut config = Config::new();
    // Guests can be suspended, instructions are counted, and no signal handlers are installed.
    config.async_support(true).consume_fuel(true).signals_based_traps(false);
    config.async_stack_size(STACK).max_wasm_stack(GUEST_STACK);
    // Reserves the whole address range of a memory at once, so that growth copies nothing.
    config.memory_reservation(MEMORY_MAX as u64).memory_reservation_for_growth(0);
    config.memory_guard_size(0).memory_init_cow(false).memory_may_move(false);
    config.wasm_memory64(false).wasm_multi_memory(false);
    // Results are the same on every machine.
    config.wasm_relaxed_simd(false).cranelift_nan_canonicalization(true);
    config.cranelift_opt_level(OptLevel::Speed);
    // Backtraces of guests are not used.
    config.wasm_backtrace(false).generate_address_map(false).native_unwind_info(false);
    config
}
