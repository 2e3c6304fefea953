//! Modules that are bound to streams of WRITEs, between two devices of one process.

#[path = "../../remora/tests/support/mod.rs"]
mod support;

use remora::kernel::{Binding, Bound, CallStatus};
use remora::nic::queue::{Data, SendFlags, SendOp, SendRequest, Status};
use remora_wasm::{LoadError, Module, PAYLOAD_STEPS};
use support::{End, PATIENCE, pair};

/// Where WRITEs go, and where a tap keeps its notes.
const TO: u64 = 0;
const NOTES: u64 = 2 << 20;
const LEN: u32 = 10_000;

fn module(text: &str) -> Result<Module, LoadError> {
    Module::load(&wat::parse_str(text).unwrap())
}

/// A module around the body of its tap, which finds the first region's address in `$notes`.
fn tap(body: &str) -> Module {
    let module = module(&format!(
        r#"(module
            (import "remora" "payload" (func $payload (param i32 i32) (result i32)))
            (import "remora" "read" (func $read (param i64 i32 i32) (result i32)))
            (import "remora" "write" (func $write (param i64 i32 i32) (result i32)))
            (import "remora" "output" (func $output (param i32 i32) (result i32)))
            (import "remora" "granted" (func $granted (param i32 i32) (result i32)))
            (import "remora" "passing" (func $passing (param i32) (result i32)))
            (import "remora" "yield_now" (func $yield_now (result i32)))
            (import "remora" "send_to"
                (func $send_to (param i32 i32 i64 i32 i32) (result i32)))
            (memory (export "memory") 1)
            (global $count (mut i32) (i32.const 0))
            (func (export "kernel") (result i32) (i32.const 0))
            (func (export "tap") (result i32) (local $len i32) (local $i i32) {body}))"#
    ));
    module.unwrap()
}

fn bind(end: &End, to: Bound, module: &Module) -> Binding {
    let tap = Box::new(module.tap(1_000_000).unwrap());
    end.device.bind_kernel(to, vec![end.memory.grant_write()], tap).unwrap()
}

fn data() -> Vec<u8> {
    (0..LEN).map(|i| (i * 7 + (i >> 8)) as u8).collect()
}

/// Writes `LEN` bytes, and returns the bytes that the target has then.
fn write(a: &End, b: &End) -> Vec<u8> {
    a.memory.write_at(0, &data()).unwrap();
    b.memory.write_at(TO as usize, &[0; LEN as usize]).unwrap();
    let op = SendOp::Write { to: b.memory.remote(TO), imm: None };
    let (data, flags) = (&[a.memory.sge(0, LEN)][..], SendFlags::SIGNALED);
    a.qp.post_send(&SendRequest { wr_id: 1, op, data: Data::Sges(data), flags }).unwrap();
    assert_eq!(a.send_cq.spin(PATIENCE).unwrap().status, Status::Success);
    let mut got = vec![0; LEN as usize];
    b.memory.read_at(TO as usize, &mut got).unwrap();
    got
}

fn notes(end: &End) -> Vec<u32> {
    let mut bytes = [0; 32];
    end.memory.read_at(NOTES as usize, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn stops(end: &End) -> u64 {
    let counters = end.device.counters();
    counters.iter().find(|(name, _)| *name == "kernel_taps_stopped").unwrap().1
}

/// Copies the whole payload to address 1024, and puts out each byte with its bits inverted.
const INVERT: &str = "
    (local.set $len (call $payload (i32.const 1024) (i32.const 8192)))
    (loop $next
        (i32.store8 offset=1024 (local.get $i)
            (i32.xor (i32.load8_u offset=1024 (local.get $i)) (i32.const 255)))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if $next (i32.lt_u (local.get $i) (local.get $len))))
    (drop (call $output (i32.const 1024) (local.get $len)))
    (i32.const 1)";

#[test]
fn a_tap_lets_pass_replaces_and_takes() {
    let (a, b, _client) = pair();
    let to = Bound::Region(b.memory.key());
    let inverted: Vec<u8> = data().iter().map(|byte| !byte).collect();
    let binding = bind(&b, to, &tap("(i32.const 0)"));
    assert_eq!(write(&a, &b), data());
    let seen = binding.info().payloads;
    assert!(seen >= 3 && binding.info().stopped.is_none(), "{:?}", binding.info());
    // Another kernel in its place, and another.
    let rebind = |body: &str| {
        let tap = tap(body).tap(PAYLOAD_STEPS).unwrap();
        binding.replace(vec![b.memory.grant_write()], Box::new(tap));
    };
    rebind(INVERT);
    assert_eq!(write(&a, &b), inverted);
    rebind("(i32.const 2)");
    assert_eq!(write(&a, &b), [0; LEN as usize]);
    assert_eq!(binding.info().payloads, seen, "the new one's");
    drop(binding);
    assert_eq!(write(&a, &b), data());
    assert_eq!(stops(&b), 0);
}

#[test]
fn a_tap_is_told_of_payloads_and_keeps_its_globals() {
    let (a, b, _client) = pair();
    // Notes what `passing` and `granted` say, and how many payloads there were.
    let body = format!(
        "(drop (call $passing (i32.const 0)))
        (drop (call $granted (i32.const 0) (i32.const 64)))
        (global.set $count (i32.add (global.get $count) (i32.const 1)))
        (i32.store (i32.const 28) (global.get $count))
        (if (call $granted (i32.const 1) (i32.const 128)) (then)
            (else (unreachable)))
        (drop (call $write (i64.add (i64.load (i32.const 64)) (i64.const {NOTES}))
            (i32.const 0) (i32.const 32)))
        (i32.const 0)"
    );
    let binding = bind(&b, Bound::Receive(b.qp.qpn()), &tap(&body));
    assert_eq!(write(&a, &b), data());
    let told = notes(&b);
    let [qpn, len, offset, total, again, count] = told[2..] else { panic!("{told:?}") };
    assert_eq!((qpn, total, again), (b.qp.qpn(), LEN, 0));
    assert_eq!(offset + len, LEN, "the last payload is the last noted");
    let addr = u64::from(told[1]) << 32 | u64::from(told[0]);
    assert_eq!(addr, b.memory.remote(TO).addr + u64::from(offset));
    assert_eq!(u64::from(count), binding.info().payloads);
}

#[test]
fn a_tap_that_fails_is_stopped_and_writes_go_on() {
    let wild = "(call $read (i64.const 64) (i32.const 0) (i32.const -1))";
    let outside = "(drop (call $payload (i32.const -8) (i32.const 64))) (i32.const 0)";
    let late = "(global.set $count (i32.add (global.get $count) (i32.const 1)))
        (if (i32.gt_u (global.get $count) (i32.const 1)) (then (unreachable)))
        (i32.const 0)";
    let greedy = "(loop $more
            (drop (call $granted (i32.const 0) (i32.const 0)))
            (drop (call $read (i64.load (i32.const 0)) (i32.const 8) (i32.const 32768)))
            (br $more))
        (i32.const 0)";
    let sender = "(drop (call $send_to (i32.const 1) (i32.const 2) (i64.const 3) (i32.const 0)
        (i32.const 8))) (i32.const 0)";
    for (body, status) in [
        ("(unreachable)", CallStatus::TRAP),
        (outside, CallStatus::TRAP),
        (wild, CallStatus::TRAP),
        (late, CallStatus::TRAP),
        ("(loop $for_ever (br $for_ever)) (i32.const 0)", CallStatus::BUDGET),
        (greedy, CallStatus::BUDGET),
        ("(i32.const 3)", CallStatus::TRAP),
        ("(i32.const -300)", CallStatus::TRAP),
        ("(i32.const -3)", CallStatus::NOT_FOUND),
        ("(drop (call $yield_now)) (i32.const 0)", CallStatus::TRAP),
        (sender, CallStatus::TRAP),
    ] {
        let (a, b, _client) = pair();
        let binding = bind(&b, Bound::Region(b.memory.key()), &tap(body));
        assert_eq!(write(&a, &b), data(), "{body}");
        let info = binding.info();
        assert_eq!((info.stopped, stops(&b)), (Some(status), 1), "{body}");
        assert_eq!(write(&a, &b), data(), "{body}");
        assert_eq!((binding.info(), stops(&b)), (info, 1), "it sees nothing any more: {body}");
    }
}

/// A tap's budget has an end without a loop, too.
#[test]
fn each_call_of_a_host_function_is_a_step_of_a_tap() {
    for call in [
        "(drop (call $passing (i32.const 0)))",
        "(drop (call $payload (i32.const 0) (i32.const 0)))",
        "(drop (call $output (i32.const 0) (i32.const 0)))",
    ] {
        for (calls, stopped) in [(3_000, None), (5_000, Some(CallStatus::BUDGET))] {
            let body = call.repeat(calls) + "(i32.const 0)";
            let (a, b, _client) = pair();
            let receives = bind(&b, Bound::Region(b.memory.key()), &tap(&body));
            let sends = bind(&a, Bound::Send(a.qp.qpn()), &tap(&body));
            assert_eq!(write(&a, &b), data());
            for binding in [receives, sends] {
                assert_eq!(binding.info().stopped, stopped, "{calls} {call}");
            }
        }
    }
}

#[test]
fn a_refused_access_is_told_to_the_tap() {
    let (a, b, _client) = pair();
    // Memory that is not granted: the tap gets the status, and ends with it here.
    let body = "(i32.sub (i32.const 0) (call $read (i64.const 64) (i32.const 0) (i32.const 8)))";
    let binding = bind(&b, Bound::Region(b.memory.key()), &tap(body));
    assert_eq!(write(&a, &b), data());
    assert_eq!(binding.info().stopped, Some(CallStatus::ACCESS));
    // A tap cannot put out more bytes than pass.
    let body = "(i32.sub (i32.const 0) (call $output (i32.const 0) (i32.const 60000)))";
    binding.replace(vec![], Box::new(tap(body).tap(PAYLOAD_STEPS).unwrap()));
    assert_eq!(write(&a, &b), data());
    assert_eq!(binding.info().stopped, Some(CallStatus::TOO_LONG));
}

#[test]
fn a_send_kernel_changes_what_leaves_and_reaches_no_memory() {
    let (a, b, _client) = pair();
    let inverted: Vec<u8> = data().iter().map(|byte| !byte).collect();
    let binding = bind(&a, Bound::Send(a.qp.qpn()), &tap(INVERT));
    assert_eq!(write(&a, &b), inverted);
    let mut source = vec![0; LEN as usize];
    a.memory.read_at(0, &mut source).unwrap();
    assert_eq!(source, data(), "the source is as it was");
    for body in ["(call $read (i64.const 64) (i32.const 0) (i32.const 8))", "(i32.const 2)"] {
        binding.replace(vec![a.memory.grant_write()], Box::new(tap(body).tap(1).unwrap()));
        let before = stops(&a);
        assert_eq!(write(&a, &b), data(), "{body}");
        assert_eq!(binding.info().stopped, Some(CallStatus::TRAP), "{body}");
        assert_eq!(stops(&a), before + 1, "{body}");
    }
}

#[test]
fn what_is_no_tap_is_refused() {
    let kernel = r#"(func (export "kernel") (result i32) (i32.const 0))"#;
    let plain = module(&format!("(module {kernel})")).unwrap();
    assert_eq!(plain.tap(1).unwrap_err(), LoadError::NoTap);
    for tap in [r#"(func (export "tap"))"#, r#"(global (export "tap") i32 (i32.const 0))"#] {
        let refused = module(&format!("(module {kernel} {tap})")).unwrap_err();
        assert_eq!(refused, LoadError::BadTap);
    }
    // A module that traps as it starts is loaded, since each call can report the trap; its tap is
    // refused.
    let start = "(func $start (unreachable)) (start $start)";
    let tap = r#"(func (export "tap") (result i32) (i32.const 0))"#;
    let broken = module(&format!("(module {start} {kernel} {tap})")).unwrap();
    assert_eq!(broken.tap(1).unwrap_err(), LoadError::Start(CallStatus::TRAP));
}
