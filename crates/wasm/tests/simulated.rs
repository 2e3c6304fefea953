//! Kernels loaded as WebAssembly, in simulated worlds.

use core::time::Duration;

use remora_nic::kernel::CallStatus;
use remora_offload::kernel::builtin::get;
use remora_offload::kernel::{AsyncProgram, ExecutorLimits, Program};
use remora_sim::faults::Faults;
use remora_sim::hardware::PortTerms;
use remora_sim::kernel::kernel_pair;
use remora_sim::pair::{B, Pair, PairOptions};
use remora_wasm::Module;

const OP: u64 = 0x77;
const GET: &[u8] = include_bytes!("../../../guest/built/get.wasm");
const LINES: &[u8] = include_bytes!("../../../guest/built/lines.wasm");

/// A pair whose memory takes 1.5 µs, as in StRoM §6.2.
fn timed() -> Pair {
    let port = PortTerms::flat(Duration::from_nanos(1500), 80);
    kernel_pair(PairOptions::default(), ExecutorLimits::default(), Some(port))
}

/// Gets a few values with the kernel `program`. Returns for each the status, the value, and the
/// time that it took.
fn fetches(mut t: Pair, program: Box<dyn Program>) -> Vec<(Option<CallStatus>, Vec<u8>, Duration)> {
    t.deploy_program(B, OP, program).unwrap();
    let base = t.remote(B, 0).addr;
    let mut table = get::Table::new(1, 3);
    for key in 0..9 {
        let value = get::Value { addr: base + 4096 + key * 100, len: 100 };
        table.insert(key, value).unwrap();
        t.set(B, 4096 + key * 100, &[key as u8 + 1; 100]);
    }
    t.set(B, 0, table.bytes());
    let fetch = |key| {
        let params = get::Params { table: base, key, entry: 0, chain_max: 0 };
        let start = t.world.now;
        let (status, value) = t.call_and_wait(OP, &params.to_bytes(), &[], 200);
        (status, value, t.world.now - start)
    };
    let seen = [0, 5, 8, 9, 1].map(fetch).into();
    t.tear_down();
    seen
}

#[test]
fn a_loaded_kernel_has_the_results_and_times_of_the_built_in_one() {
    let module = Module::load(GET).unwrap();
    let native = || Box::new(AsyncProgram::new(get::get));
    let seen = fetches(timed(), native());
    assert_eq!((seen[1].0, &seen[1].1[..]), (Some(CallStatus::OK), &[6; 100][..]));
    assert_eq!(seen[3].0, Some(CallStatus::NOT_FOUND));
    assert_eq!(fetches(timed(), Box::new(module.program())), seen);
    let untimed = || kernel_pair(PairOptions::default(), ExecutorLimits::default(), None);
    let seen = fetches(untimed(), native());
    assert_eq!(fetches(untimed(), Box::new(module.program())), seen);
}

#[test]
fn a_loaded_kernel_processes_a_stream_over_a_faulty_network() {
    let module = Module::load(LINES).unwrap();
    let text: String = (0..4000).map(|i| format!("line {i} of a text\n")).collect();
    let expected: String =
        text.lines().filter(|line| line.contains("77 ")).map(|line| format!("{line}\n")).collect();
    for timed_world in [false, true] {
        let mut t = if timed_world {
            timed()
        } else {
            kernel_pair(PairOptions::default(), ExecutorLimits::default(), None)
        };
        t.world.network.faults = Faults { loss: 0.03, duplicate: 0.03, ..Faults::default() };
        t.deploy_program(B, OP, Box::new(module.program())).unwrap();
        let (status, seen) = t.call_and_wait(OP, b"77 ", text.as_bytes(), 100_000);
        assert_eq!(status, Some(CallStatus::OK));
        assert_eq!(String::from_utf8(seen).unwrap(), expected);
        t.tear_down();
    }
}
