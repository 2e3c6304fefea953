//! The compiler, and the functions that every module may import.

use std::sync::OnceLock;

use wasmtime::{Config, Engine, Linker, OptLevel};

use crate::error::LoadError;
use crate::guest::Guest;
use crate::imports;
use remora_offload::cpu::{self, Level};
use remora_offload::kernel::ModuleLimits;

/// Bytes of native stack for a guest; host functions that it calls use a little more.
const GUEST_STACK: usize = 64 << 10;
/// Bytes of the stack of an instance that can be suspended.
const STACK: usize = 256 << 10;

/// What all modules of the process share. It holds no state of a module.
pub(crate) struct Host {
    pub(crate) engine: Engine,
    /// For instances that run as a plain call.
    pub(crate) plain: Linker<Guest>,
    /// For instances that can be suspended.
    pub(crate) suspending: Linker<Guest>,
    /// For instances that are bound to streams.
    pub(crate) tapping: Linker<Guest>,
}

impl Host {
    /// The host of this process, created when the first module is loaded.
    pub(crate) fn get() -> Result<&'static Host, LoadError> {
        static HOST: OnceLock<Result<Host, String>> = OnceLock::new();
        let host = HOST.get_or_init(|| Host::new().map_err(|error| format!("{error:#}")));
        host.as_ref().map_err(|error| LoadError::Engine(error.clone()))
    }

    fn new() -> wasmtime::Result<Host> {
        let engine = Engine::new(&config(cpu::level()))?;
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

/// What processors of level v3 have, and lesser ones lack, by the compiler's names.
const OF_V3: [&str; 6] = ["has_avx", "has_avx2", "has_fma", "has_bmi1", "has_bmi2", "has_lzcnt"];
/// What processors of level v4 have, and lesser ones lack, by the compiler's names.
const OF_V4: [&str; 5] =
    ["has_avx512f", "has_avx512vl", "has_avx512dq", "has_avx512vbmi", "has_avx512bitalg"];

fn config(level: Level) -> Config {
    let mut config = Config::new();
    // The compiler looks at the processor itself, and is told what else not to use.
    let without_v3 = OF_V3.iter().filter(|_| !level.has_avx2());
    let without = without_v3.chain(OF_V4.iter().filter(|_| !level.has_avx512()));
    for feature in without.filter(|_| cfg!(target_arch = "x86_64")) {
        // SAFETY: code that uses fewer instructions runs wherever code that uses more would.
        unsafe { config.cranelift_flag_set(feature, "false") };
    }
    // Guests can be suspended, instructions are counted, and no signal handlers are installed.
    config.async_support(true).consume_fuel(true).signals_based_traps(false);
    config.async_stack_size(STACK).max_wasm_stack(GUEST_STACK);
    // Reserves the whole address range of a memory at once, so that growth copies nothing.
    config.memory_reservation(ModuleLimits::MEMORY_MAX as u64).memory_reservation_for_growth(0);
    config.memory_guard_size(0).memory_init_cow(false).memory_may_move(false);
    config.wasm_memory64(false).wasm_multi_memory(false);
    // Results are the same on every machine.
    config.wasm_relaxed_simd(false).cranelift_nan_canonicalization(true);
    config.cranelift_opt_level(OptLevel::Speed);
    // Backtraces of guests are not used.
    config.wasm_backtrace(false).generate_address_map(false).native_unwind_info(false);
    config
}

#[cfg(test)]
mod tests {
    use core::pin::pin;
    use core::task::{Context, Poll, Waker};

    use super::*;
    use wasmtime::{Instance, Module, Store};

    /// Counts zeroes and bits, shifts, and rounds: what the levels do by different instructions.
    const MODULE: &str = r#"(module (func (export "f") (param i64) (result i64)
        (i64.add (i64.mul (i64.clz (local.get 0)) (i64.ctz (local.get 0)))
            (i64.xor (i64.rotl (local.get 0) (i64.popcnt (local.get 0)))
                (i64.trunc_f64_s (f64.nearest (f64.mul (f64.const 0.37)
                    (f64.convert_i64_s (i64.shr_s (local.get 0) (i64.const 20))))))))))"#;

    fn results(level: Level) -> Vec<i64> {
        let engine = Engine::new(&config(level)).unwrap();
        let module = Module::new(&engine, wat::parse_str(MODULE).unwrap()).unwrap();
        let mut store = Store::new(&engine, ());
        store.set_fuel(1 << 30).unwrap();
        let run = async move {
            let instance = Instance::new_async(&mut store, &module, &[]).await.unwrap();
            let f = instance.get_typed_func::<i64, i64>(&mut store, "f").unwrap();
            let mut results = Vec::new();
            for i in 0..200i64 {
                let value = i.wrapping_mul(0x1234_5678_9ABC_DEF1) >> (i % 60);
                results.push(f.call_async(&mut store, value).await.unwrap());
            }
            results
        };
        let polled = pin!(run).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(results) = polled else { panic!("nothing waits") };
        results
    }

    #[test]
    fn all_levels_compute_alike() {
        let expected = results(Level::highest());
        assert!(expected.windows(2).any(|pair| pair[0] != pair[1]));
        Level::all().for_each(|level| assert_eq!(results(level), expected, "{level}"));
    }
}
