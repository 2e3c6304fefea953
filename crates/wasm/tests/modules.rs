//! Kernels that are loaded as WebAssembly, between two devices of one process.

#[path = "../../remora/tests/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use remora::kernel::{
    CallFailure, CallStatus, Deployment, Grant, KernelClient, Loadable, MemoryShare,
};
use remora_wasm::{LoadError, Module, ModuleLimits};
use support::{End, pair};

const OPCODE: u64 = 0x1000;

fn module(text: &str) -> Module {
    Module::load(&wat::parse_str(text).unwrap()).unwrap()
}

/// A module around the body of its kernel.
fn kernel(body: &str) -> Module {
    module(&format!(
        r#"(module
            (import "remora" "call" (func $call (param i32) (result i32)))
            (import "remora" "params" (func $params (param i32 i32) (result i32)))
            (import "remora" "payload" (func $payload (param i32 i32) (result i32)))
            (import "remora" "read" (func $read (param i64 i32 i32) (result i32)))
            (import "remora" "write" (func $write (param i64 i32 i32) (result i32)))
            (import "remora" "fetch" (func $fetch (param i64 i32) (result i32)))
            (import "remora" "output" (func $output (param i32 i32) (result i32)))
            (import "remora" "send_memory" (func $send_memory (param i64 i32) (result i32)))
            (import "remora" "yield_now" (func $yield_now (result i32)))
            (memory (export "memory") 1 100)
            (global $count (mut i32) (i32.const 0))
            (func $kernel (export "kernel") (result i32) {body}))"#
    ))
}

fn load(end: &End, module: &Module, grants: &[Grant]) {
    end.device.load_kernel(OPCODE, Deployment::new("test", grants), module).unwrap();
}

/// Calls the kernel; returns its output, or why it failed.
fn call(client: &mut KernelClient, params: &[u8]) -> Result<Vec<u8>, CallStatus> {
    let mut out = Vec::new();
    match client.call(OPCODE, params, &mut out) {
        Ok(_) => Ok(out),
        Err(CallFailure::Status(status)) => Err(status),
        Err(other) => panic!("{other}"),
    }
}

fn counter(end: &End, name: &str) -> u64 {
    end.device.counters().iter().find(|(n, _)| *n == name).unwrap().1
}

/// Loads a kernel with this body, and calls it once.
fn run(body: &str, params: &[u8]) -> Result<Vec<u8>, CallStatus> {
    let (_a, b, mut client) = pair();
    load(&b, &kernel(body), &[b.memory.grant_write()]);
    call(&mut client, params)
}

#[test]
fn a_kernel_sees_its_call() {
    let (_a, b, mut client) = pair();
    let body = "(drop (call $call (i32.const 0)))
        (drop (call $params (i32.const 32) (i32.const 100)))
        (call $output (i32.const 0) (i32.const 40))";
    load(&b, &kernel(body), &[]);
    let seen = call(&mut client, b"p a r a m").unwrap();
    let u32_at = |at: usize| u32::from_le_bytes(seen[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(seen[at..at + 8].try_into().unwrap());
    assert_eq!((u32_at(0), u32_at(4)), (b.qp.qpn(), 1 << 20));
    assert_eq!((u64_at(8), u64_at(16), u32_at(24), u32_at(28)), (OPCODE, 0, 9, 0));
    assert_eq!(&seen[32..], b"p a r a ");
}

#[test]
fn memory_is_read_and_written_as_granted() {
    let (_a, b, mut client) = pair();
    b.memory.write_at(0, b"from registered memory").unwrap();
    // Reads 22 bytes where the parameters say, and writes them 64 bytes behind.
    let body = "(local $status i32) (local $addr i64)
        (drop (call $params (i32.const 0) (i32.const 8)))
        (local.set $addr (i64.load (i32.const 0)))
        (local.set $status (call $read (local.get $addr) (i32.const 8) (i32.const 22)))
        (if (local.get $status) (then (return (local.get $status))))
        (local.set $status (call $write (i64.add (local.get $addr) (i64.const 64))
            (i32.const 8) (i32.const 22)))
        (if (local.get $status) (then (return (local.get $status))))
        (call $send_memory (i64.add (local.get $addr) (i64.const 64)) (i32.const 22))";
    let copy = kernel(body);
    load(&b, &copy, &[b.memory.grant_write()]);
    let addr = b.memory.addr();
    for _ in 0..3 {
        assert_eq!(call(&mut client, &addr.to_le_bytes()).unwrap(), b"from registered memory");
    }
    assert_eq!(call(&mut client, &8u64.to_le_bytes()), Err(CallStatus::ACCESS));
    b.device.undeploy(OPCODE).unwrap();
    load(&b, &copy, &[b.memory.grant_read()]);
    assert_eq!(call(&mut client, &addr.to_le_bytes()), Err(CallStatus::ACCESS));
    assert_eq!(counter(&b, "kernel_access"), 2);
}

#[test]
fn payload_streams_through_a_guest() {
    let (a, b, mut client) = pair();
    // Echoes its payload in pieces of 3,000 bytes, which differ from packets.
    let body = "(local $len i32) (local $status i32)
        (loop $more
            (local.set $len (call $payload (i32.const 0) (i32.const 3000)))
            (if (i32.lt_s (local.get $len) (i32.const 0))
                (then (return (i32.sub (i32.const 0) (local.get $len)))))
            (if (local.get $len) (then
                (local.set $status (call $output (i32.const 0) (local.get $len)))
                (if (local.get $status) (then (return (local.get $status))))
                (br $more))))
        (i32.const 0)";
    load(&b, &kernel(body), &[]);
    for len in [0, 1, 5000, 1 << 20] {
        let bytes: Vec<u8> = (0..len).map(|i: u32| (i * 7 + (i >> 9)) as u8).collect();
        a.memory.write_at(0, &bytes).unwrap();
        let mut out = Vec::new();
        client.call_with(OPCODE, &[], a.memory.sge(0, len), &mut out).unwrap();
        assert!(out == bytes, "{len} bytes");
    }
}

#[test]
fn state_is_kept_for_one_queue_pair_and_from_all_others() {
    let count = "(global.set $count (i32.add (global.get $count) (i32.const 1)))
        (i32.store (i32.const 0) (global.get $count))
        (call $output (i32.const 0) (i32.const 4))";
    for body in [count.to_owned(), format!("(drop (call $yield_now)) {count}")] {
        let (a, b, mut client) = pair();
        let (c, mut other) = support::another(&a, &b);
        load(&b, &kernel(&body), &[]);
        // (With the second body, the first call finds that it must be suspended, and begins anew.)
        for n in 1..4u32 {
            assert_eq!(call(&mut client, &[]).unwrap(), n.to_le_bytes());
        }
        assert_eq!(call(&mut other, &[]).unwrap(), 1u32.to_le_bytes());
        assert_eq!(call(&mut client, &[]).unwrap(), 4u32.to_le_bytes());
        drop(c);
    }
}

/// Queue pairs that have called leave the memory of their instances to those that call.
#[test]
fn idle_instances_make_room_for_others() {
    for body in ["(i32.const 0)", "(drop (call $yield_now)) (i32.const 0)"] {
        let (a, b, client) = pair();
        let [(one, second), (two, third)] = [(); 2].map(|()| support::another(&a, &b));
        let share = Arc::new(MemoryShare::new(2 << 16));
        let (bytes, limits) = (kernel(body).bytes().to_vec(), ModuleLimits::default());
        let module = Module::load_within(&bytes, limits, Some(share.clone())).unwrap();
        load(&b, &module, &[]);
        let mut clients = [client, second, third];
        for client in [0, 1, 2, 0, 2, 1] {
            assert_eq!(call(&mut clients[client], &[]), Ok(Vec::new()), "{body}");
        }
        assert_eq!(share.taken(), 2 << 16, "as many are kept as there is room for");
        drop((one, two));
    }
}

#[test]
fn whatever_a_guest_does_wrong_ends_its_invocation_only() {
    let endless = "(loop $again (br $again)) (i32.const 0)";
    let reads = "(loop $again (drop (call $read (i64.const 0) (i32.const 0) (i32.const 8)))
        (br $again)) (i32.const 0)";
    let yields = "(loop $again (drop (call $yield_now)) (br $again)) (i32.const 0)";
    let grows = "(loop $again (drop (memory.grow (i32.const 1))) (br $again)) (i32.const 0)";
    let wild = "(i32.load (i32.const -4))";
    let outside = "(call $read (i64.const 0) (i32.const 65530) (i32.const 100))";
    let huge = "(call $output (i32.const 0) (i32.const -1))";
    let zero = "(i32.div_s (i32.const 1) (i32.const 0))";
    let status = "(i32.const 256)";
    let cases = [
        (endless, CallStatus::BUDGET, "kernel_budget"),
        (reads, CallStatus::BUDGET, "kernel_budget"),
        (yields, CallStatus::BUDGET, "kernel_budget"),
        (grows, CallStatus::MEMORY, "kernel_memory"),
        (wild, CallStatus::TRAP, "kernel_trap"),
        (outside, CallStatus::TRAP, "kernel_trap"),
        (huge, CallStatus::TRAP, "kernel_trap"),
        (zero, CallStatus::TRAP, "kernel_trap"),
        ("(unreachable)", CallStatus::TRAP, "kernel_trap"),
        ("(call $kernel)", CallStatus::TRAP, "kernel_trap"),
        (status, CallStatus::TRAP, "kernel_trap"),
        ("(i32.const 200)", CallStatus(200), "kernel_failed"),
    ];
    let (_a, b, mut client) = pair();
    let good = kernel("(call $output (i32.const 0) (i32.const 1))");
    b.device.load_kernel(OPCODE + 1, Deployment::new("good", []), &good).unwrap();
    for (body, expected, name) in cases {
        // Each body runs at the beginning of a call, and after the call was suspended.
        for body in [body.to_owned(), format!("(drop (call $yield_now)) {body}")] {
            load(&b, &kernel(&body), &[]);
            for _ in 0..2 {
                let before = counter(&b, name);
                assert_eq!(call(&mut client, &[]), Err(expected), "{body}");
                assert_eq!(counter(&b, name), before + 1, "{body}");
                let mut out = Vec::new();
                assert_eq!(client.call(OPCODE + 1, &[], &mut out).unwrap(), 1, "{body}");
            }
            b.device.undeploy(OPCODE).unwrap();
        }
    }
}

#[test]
fn a_long_invocation_lets_others_go_first() {
    let (_a, b, mut client) = pair();
    let endless = kernel("(loop $again (br $again)) (i32.const 0)");
    let deployment = Deployment::new("endless", []).budget(u64::MAX);
    b.device.load_kernel(OPCODE, deployment, &endless).unwrap();
    let quick = kernel("(i32.const 0)");
    b.device.load_kernel(OPCODE + 1, Deployment::new("quick", []), &quick).unwrap();
    let long = client.begin(OPCODE, &[]).unwrap();
    let mut out = Vec::new();
    for _ in 0..20 {
        client.call(OPCODE + 1, &[], &mut out).unwrap();
    }
    assert!(!client.is_done(&long).unwrap());
    b.device.undeploy(OPCODE).unwrap();
    let ended = client.finish(long, &mut out);
    assert!(matches!(ended, Err(CallFailure::Status(CallStatus::UNLOADED))));
}

#[test]
fn instructions_are_budgeted_exactly() {
    let (_a, b, mut client) = pair();
    // 100,000 rounds: more than a turn has.
    let body = "(local $i i32)
        (loop $again
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $again (i32.lt_u (local.get $i) (i32.const 100000))))
        (i32.const 0)";
    let counting = kernel(body);
    let ends = |budget: u64, client: &mut KernelClient| {
        let deployment = Deployment::new("counting", []).budget(budget);
        b.device.load_kernel(OPCODE, deployment, &counting).unwrap();
        let end = call(client, &[]).map(|_| ());
        b.device.undeploy(OPCODE).unwrap();
        end
    };
    let (mut low, mut high) = (1, 100_000);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if ends(middle, &mut client).is_ok() { high = middle } else { low = middle }
    }
    // Eight instructions a round, 64 a step.
    assert_eq!(high, 100_000 * 8 / 64);
    assert_eq!(ends(low, &mut client), Err(CallStatus::BUDGET));
}

#[test]
fn modules_that_are_no_kernels_are_refused() {
    let load = |text: &str| Module::load(&wat::parse_str(text).unwrap()).map(|_| ());
    let begin = b"\x7fELF\x02\x01\x01\0";
    let other = Module::load(&[&begin[..], &[0xFF; 100]].concat()).unwrap_err();
    assert_eq!(other, LoadError::NoModule(begin.into()));
    let said = r#"this is not a WebAssembly module: it begins with "\x7fELF\x02\x01\x01\x00""#;
    assert_eq!(other.to_string(), said);
    assert!(matches!(Module::load(&[]), Err(LoadError::Invalid(_))));
    assert_eq!(Module::load(&vec![0; 2 << 20]).unwrap_err(), LoadError::TooBig(2 << 20));
    assert_eq!(load("(module)"), Err(LoadError::NoKernel));
    let takes = r#"(module (func (export "kernel") (param i32) (result i32) (i32.const 0)))"#;
    assert_eq!(load(takes), Err(LoadError::NoKernel));
    let two = r#"(module (func (export "kernel") (result i32 i32) i32.const 0 i32.const 0))"#;
    assert_eq!(load(two), Err(LoadError::NoKernel));
    let entry = r#"(func (export "kernel") (result i32) (i32.const 0))"#;
    let with = |part: &str| load(&format!("(module {part} {entry})"));
    assert_eq!(with(""), Ok(()));
    let wasi = r#"(import "wasi_snapshot_preview1" "fd_write" (func))"#;
    let name = "wasi_snapshot_preview1.fd_write".to_owned();
    assert_eq!(with(wasi), Err(LoadError::Import(name)));
    let unknown = r#"(import "remora" "reboot" (func))"#;
    assert_eq!(with(unknown), Err(LoadError::Import("remora.reboot".to_owned())));
    let typed = with(r#"(import "remora" "read" (func (param i32)))"#);
    assert!(matches!(typed, Err(LoadError::ImportType(_))), "{typed:?}");
    let (wanted, limit) = (65 << 16, 4 << 20);
    assert_eq!(with("(memory 65)"), Err(LoadError::Memory { wanted, limit }));
    let limit = 4096;
    assert_eq!(with("(table 5000 funcref)"), Err(LoadError::Table { wanted: 5000, limit }));
    for not_offered in ["(memory 1) (memory 1)", "(memory i64 1)", "(memory 1 1 shared)"] {
        assert!(matches!(with(not_offered), Err(LoadError::Invalid(_))), "{not_offered}");
    }
    let limits = ModuleLimits { memory: 1 << 16, ..ModuleLimits::default() };
    let two_pages = wat::parse_str(format!("(module (memory 2) {entry})")).unwrap();
    assert!(matches!(Module::load_with(&two_pages, limits), Err(LoadError::Memory { .. })));
}

#[test]
fn start_functions_have_the_bounds_of_an_invocation() {
    let (_a, b, mut client) = pair();
    let entry = r#"(func (export "kernel") (result i32) (i32.const 0))"#;
    for (start, expected) in [
        ("(func $start)", Ok(Vec::new())),
        ("(func $start (loop $again (br $again)))", Err(CallStatus::BUDGET)),
        ("(func $start unreachable)", Err(CallStatus::TRAP)),
        ("(memory 1) (data (i32.const 65535) \"ab\") (func $start)", Err(CallStatus::TRAP)),
        // The limit of tables is for all of them together, and for their growth.
        ("(table 2000 funcref) (table 2000 funcref) (func $start)", Ok(Vec::new())),
        ("(table 3000 funcref) (table 3000 funcref) (func $start)", Err(CallStatus::MEMORY)),
        (
            "(table $t 1 funcref)
             (func $start (drop (table.grow $t (ref.null func) (i32.const 4096))))",
            Err(CallStatus::MEMORY),
        ),
    ] {
        load(&b, &module(&format!("(module {start} (start $start) {entry})")), &[]);
        assert_eq!(call(&mut client, &[]), expected, "{start}");
        b.device.undeploy(OPCODE).unwrap();
    }
}

#[test]
fn a_kernel_is_replaced_under_traffic() {
    let (_a, b, mut client) = pair();
    let version = |n: u32| {
        // Odd versions are suspended.
        let pause = if n % 2 == 1 { "(drop (call $yield_now))" } else { "" };
        kernel(&format!(
            "{pause} (i32.store (i32.const 0) (i32.const {n}))
             (call $output (i32.const 0) (i32.const 4))"
        ))
    };
    let versions: Vec<Module> = (0..4).map(version).collect();
    load(&b, &versions[0], &[]);
    let (stop, device) = (AtomicBool::new(false), b.device.clone());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for module in versions.iter().cycle().skip(1) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let deployment = Deployment::new("next", []);
                device.replace_kernel(OPCODE, deployment, Box::new(module.program())).unwrap();
                std::thread::yield_now();
            }
        });
        let mut seen = [0; 4];
        let mut calls = 0;
        // One version answers each call, and each version answers some.
        while calls < 500 || seen.contains(&0) {
            let tickets: Vec<_> = (0..4).map(|_| client.begin(OPCODE, &[]).unwrap()).collect();
            for ticket in tickets {
                let mut out = Vec::new();
                assert_eq!(client.finish(ticket, &mut out).unwrap(), 4);
                seen[out[0] as usize] += 1;
                calls += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(b.device.kernels().len(), 1);
}

#[test]
fn results_of_a_trial_that_is_undone_are_not_sent_twice() {
    // The kernel puts out bytes, and only then does what a trial cannot do.
    let body = "(i32.store (i32.const 0) (i32.const 0x44434241))
        (drop (call $output (i32.const 0) (i32.const 2)))
        (drop (call $yield_now))
        (call $output (i32.const 2) (i32.const 2))";
    assert_eq!(run(body, &[]).unwrap(), b"ABCD");
    // The kernel puts out more than leaves at once.
    let body = "(local $i i32)
        (loop $again
            (drop (call $output (i32.const 0) (i32.const 60000)))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $again (i32.lt_u (local.get $i) (i32.const 10))))
        (i32.const 0)";
    assert_eq!(run(body, &[]).unwrap().len(), 600_000);
    // The kernel puts out more than fits the requester's buffer.
    assert_eq!(run(&body.replace("10)", "20)"), &[]), Err(CallStatus::TOO_LONG));
}

#[test]
fn tables_count_as_memory_and_growth_that_fails_does_not() {
    let (_a, b, mut client) = pair();
    let table = "(table 500 funcref)";
    let fails = "(local $i i32)
        (loop $again
            (drop (memory.grow (i32.const 60)))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $again (i32.lt_u (local.get $i) (i32.const 3000))))";
    for (parts, body, expected) in [
        ("(memory 1 50)".to_owned(), fails, Ok(Vec::new())),
        (format!("(memory 31) {}", table.repeat(8)), "", Ok(Vec::new())),
        (format!("(memory 32) {table}"), "", Err(CallStatus::MEMORY)),
    ] {
        let text = format!(
            r#"(module {parts} (func (export "kernel") (result i32) {body} (i32.const 0)))"#
        );
        let limits = ModuleLimits { memory: 2 << 20, ..ModuleLimits::default() };
        let module = Module::load_with(&wat::parse_str(text).unwrap(), limits).unwrap();
        load(&b, &module, &[]);
        assert_eq!(call(&mut client, &[]), expected, "{parts:.30}");
        b.device.undeploy(OPCODE).unwrap();
    }
}
