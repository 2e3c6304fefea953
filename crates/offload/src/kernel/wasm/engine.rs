//! The compiler, and what every module may link to.

use std::sync::OnceLock;

use wasmtime::{Config, Engine, Linker, OptLevel};

use super::error::LoadError;
use super::guest::Guest;
use super::imports;
use super::limits::MEMORY_MAX;

/// Bytes of native stack that a guest may use; what it calls of the host uses a little more.
const GUEST_STACK: usize = 64 << 10;
/// Bytes of a stack of its own.
const STACK: usize = 256 << 10;

/// What all modules of the process share; they share no state.
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
    /// The process's, made when the first module is loaded.
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
    // Guests that can be suspended; counted instructions; no signals.
    config.async_support(true).consume_fuel(true).signals_based_traps(false);
    config.async_stack_size(STACK).max_wasm_stack(GUEST_STACK);
    // All of a memory's address space at once, so that growing copies nothing.
    config.memory_reservation(MEMORY_MAX as u64).memory_reservation_for_growth(0);
    config.memory_guard_size(0).memory_init_cow(false).memory_may_move(false);
    // One instruction of these does any amount of work, and counts as one.
    config.wasm_bulk_memory(false);
    config.wasm_memory64(false).wasm_multi_memory(false);
    // The same results on every machine.
    config.wasm_relaxed_simd(false).cranelift_nan_canonicalization(true);
    config.cranelift_opt_level(OptLevel::Speed);
    // Nobody reads a guest's backtraces.
    config.wasm_backtrace(false).generate_address_map(false).native_unwind_info(false);
    config
}
