//! Kernels: the verbs RPC and RPC WRITE, their reliability, refusals and limits, and the built-in
//! kernels.

#[path = "support/echo.rs"]
mod echo;
#[path = "../../remora/tests/support/numbers.rs"]
mod numbers;

use core::time::Duration;

use remora_nic::kernel::{Bound, CallStatus, Header, Notify};
use remora_nic::queue::{Data, SendFlags, SendOp, Status, WorkKind};
use remora_nic::wire::{Dialect, Operation};
use remora_offload::kernel::builtin::{aggregate, consistency, filter, get, hyperloglog, shuffle};
use remora_offload::kernel::builtin::{column::Column, shuffle_send, traversal};
use remora_offload::kernel::{AsyncProgram, Context, Deployment, ExecutorLimits};
use remora_sim::endpoint::ConnectOptions;
use remora_sim::faults::{Fate, Faults, Rule};
use remora_sim::hardware::PortTerms;
use remora_sim::kernel::{CALL, RESULT, WORD, kernel_pair};
use remora_sim::pair::{A, B, Pair, PairOptions};

use self::echo::echo;
use self::numbers::{is_lower, lower, numbers};

const OP: u64 = 0x77;

fn pair() -> Pair {
    kernel_pair(PairOptions::default(), ExecutorLimits::default(), None)
}

/// A pair whose memory takes 1.5 µs, as in StRoM §6.2.
fn timed() -> Pair {
    let port = PortTerms::flat(Duration::from_nanos(1500), 80);
    kernel_pair(PairOptions::default(), ExecutorLimits::default(), Some(port))
}

/// Reads memory for ever.
async fn endless(context: Context) -> Result<(), CallStatus> {
    let mut byte = [0];
    let at = context.params(|p| Ok(u64::from_le_bytes(p.try_into().unwrap()))).await?;
    loop {
        context.read(at, &mut byte).await?;
    }
}

#[test]
fn an_rpc_is_one_round_trip_with_its_parameters() {
    let mut t = pair();
    t.deploy(B, OP, echo).unwrap();
    assert_eq!(
        t.call_and_wait(OP, b"parameters", &[], 100),
        (Some(CallStatus::OK), b"parameters".to_vec())
    );
    // Expect: one packet to B; the data, the status word and the acknowledge back.
    assert_eq!(t.seen(|p| p.is(Operation::Rpc)).len(), 1);
    assert_eq!(t.seen(|p| p.is(Operation::Write)).len(), 2);
    let sent = t.sent(A);
    assert_eq!((sent.len(), sent[0].status), (1, Status::Success));
    assert_eq!((t.counted("kernel_calls"), t.counted("kernel_done")), (1, 1));
    t.tear_down();
}

#[test]
fn an_rpc_write_streams_any_length_over_a_faulty_network() {
    let faults = Faults { loss: 0.03, duplicate: 0.03, ..Faults::default() };
    for len in [0usize, 1, 900, 984, 1024, 5000, 100_000] {
        let mut t = pair();
        t.world.network.faults = faults;
        t.deploy(B, OP, echo).unwrap();
        let payload: Vec<u8> = (0..len).map(|i| (i * 7 / 3) as u8).collect();
        let header = t.header(b"12345678", 200_000, 0);
        t.call_with(OP, &header, b"12345678", &payload);
        t.run();
        // Expect: each byte once and in order, in spite of losses and copies.
        let word = t.status(0).unwrap();
        assert_eq!((word.status, word.len as usize), (CallStatus::OK, len + 8));
        assert_eq!(t.bytes(A, RESULT + 8, len as u64), payload);
        assert_eq!(t.counted("kernel_calls"), 1);
        t.tear_down();
    }
}

#[test]
fn a_repeated_rpc_is_not_executed_twice() {
    let mut t = pair();
    t.deploy(B, OP, |context: Context| async move {
        let at = context.params(|p| Ok(u64::from_le_bytes(p.try_into().unwrap()))).await?;
        let mut word = [0; 8];
        context.read(at, &mut word).await?;
        context.write(at, &(u64::from_le_bytes(word) + 1).to_le_bytes()).await
    })
    .unwrap();
    t.set(B, 0, &[0; 8]);
    // All packets that answer the RPC are lost for a while.
    t.rule(Rule::nth(1, Fate::Drop, |p| p.is(Operation::Acknowledge)));
    t.rule(Rule::nth(1, Fate::Drop, |p| p.is(Operation::Write)));
    let at = t.remote(B, 0).addr.to_le_bytes();
    assert_eq!(t.call_and_wait(OP, &at, &[], 0).0, Some(CallStatus::OK));
    assert!(t.seen(|p| p.is(Operation::Rpc)).len() > 1, "the RPC was not sent again");
    assert_eq!(t.word(B, 0), 1);
    t.tear_down();
}

#[test]
fn immediate_data_can_carry_the_status() {
    let mut t = pair();
    t.deploy(B, OP, echo).unwrap();
    let wr_id = t.receive(A, 0, 0);
    let header =
        Header { notify: Notify::Immediate, cookie: 0x0123_4567, ..t.header(b"abc", 10, 0) };
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend_from_slice(b"abc");
    t.post(A, SendOp::Rpc { opcode: OP }, Data::Inline(&bytes), SendFlags::empty());
    t.run();
    // Expect: one message with the data, and status and cookie in its immediate data.
    let got = t.received(A)[0];
    assert_eq!((got.wr_id, got.kind, got.len), (wr_id, WorkKind::RecvWriteImm, 3));
    assert_eq!(CallStatus::from_immediate(got.imm_or_key), (CallStatus::OK, 0x23_4567));
    assert_eq!(t.bytes(A, RESULT, 3), b"abc");
    assert_eq!(t.seen(|p| p.is(Operation::Write)).len(), 1);
    t.tear_down();
}

#[test]
fn a_call_without_a_kernel_gets_an_error_status() {
    let mut t = pair();
    assert_eq!(t.call_and_wait(9, b"", &[], 10), (Some(CallStatus::NO_KERNEL), vec![]));
    assert_eq!(t.call_and_wait(9, b"", &[1; 5000], 10).0, Some(CallStatus::NO_KERNEL));
    // Expect: the connection stays up, and a counter counts the refusal.
    assert_eq!(t.counted("refused_no_kernel"), 2);
    t.write(A, 0, 0, 100);
    t.run();
    assert!(t.sent(A).iter().all(|c| c.status == Status::Success));
    t.tear_down();
}

#[test]
fn a_card_without_kernels_answers_too() {
    let connect = ConnectOptions { dialect: Dialect::KERNELS, ..ConnectOptions::default() };
    let mut t = Pair::new(&PairOptions { connect, ..PairOptions::default() });
    assert_eq!(t.call_and_wait(9, b"", &[], 10).0, Some(CallStatus::NO_KERNEL));
    t.tear_down();
}

#[test]
fn rpc_verbs_need_an_agreement() {
    let mut t = Pair::standard();
    let header = t.header(b"", 10, 0);
    t.call(OP, &header, b"");
    t.run();
    // Expect: the local card refuses the request, so that no packet can be misread by the peer.
    assert_eq!(t.sent(A)[0].status, Status::LocalQpOperation);
    assert!(t.seen(|_| true).is_empty());
}

#[test]
fn parameters_longer_than_a_packet_are_refused_locally() {
    let mut t = pair();
    let header = t.header(&[0; 1000], 10, 0);
    t.call(OP, &header, &[0; 1000]);
    t.run();
    assert_eq!(t.sent(A)[0].status, Status::LocalLength);
}

#[test]
fn bytes_that_are_no_call_end_the_connection() {
    let mut t = pair();
    t.set(A, CALL, &[0xFF; 100]);
    t.ask(A, SendOp::Rpc { opcode: OP }, CALL, 100);
    t.run();
    assert_eq!(t.sent(A)[0].status, Status::RemoteInvalidRequest);
    assert_eq!(t.counted("refused_bad_call"), 1);
}

#[test]
fn a_result_longer_than_its_buffer_gets_an_error_status() {
    let mut t = pair();
    t.deploy(B, OP, echo).unwrap();
    t.set(A, RESULT, &[7; 100]);
    assert_eq!(t.call_and_wait(OP, &[1; 50], &[], 49).0, Some(CallStatus::TOO_LONG));
    assert_eq!(t.bytes(A, RESULT, 100), [7; 100], "the refused result must not be written");
    assert_eq!(t.call_and_wait(OP, &[1; 50], &[2; 300_000], 200_000).0, Some(CallStatus::TOO_LONG));
    assert_eq!(t.counted("kernel_too_long"), 2);
    t.tear_down();
}

#[test]
fn a_kernel_that_pauses_lets_others_run_and_goes_on_after_its_time() {
    let mut t = pair();
    let patient = |context: Context| async move {
        for _ in 0..3 {
            context.pause(Duration::from_millis(1)).await?;
        }
        context.output(|out| out.extend_from_slice(b"late")).await
    };
    t.deploy(B, OP, patient).unwrap();
    t.deploy(B, OP + 1, echo).unwrap();
    let header = t.header(&[], 100, 1);
    t.call(OP, &header, &[]);
    let header = t.header(b"quick", 100, 2);
    t.call(OP + 1, &header, b"quick");
    t.world.run(Duration::from_micros(2900));
    assert_eq!(t.status(2).map(|w| w.status), Some(CallStatus::OK));
    assert_eq!(t.status(1), None);
    t.world.run(Duration::from_millis(1));
    assert_eq!(t.status(1).map(|w| (w.status, w.len)), Some((CallStatus::OK, 4)));
    t.tear_down();
}

#[test]
fn an_endless_kernel_ends_with_its_budget_and_does_not_delay_other_calls() {
    for (mut t, takes_time) in [(pair(), false), (timed(), true)] {
        t.deploy(B, OP, endless).unwrap();
        t.deploy(B, OP + 1, echo).unwrap();
        let at = t.remote(B, 0).addr.to_le_bytes();
        let header = t.header(&at, 0, 1);
        t.call(OP, &header, &at);
        let header = t.header(b"quick", 100, 2);
        t.call(OP + 1, &header, b"quick");
        t.world.run(Duration::from_millis(1));
        assert_eq!(t.status(2).map(|w| w.status), Some(CallStatus::OK));
        assert_eq!(t.status(1).is_none(), takes_time, "with slow memory the kernel must still run");
        t.run();
        assert_eq!(t.status(1).map(|w| w.status), Some(CallStatus::BUDGET));
        assert_eq!(t.counted("kernel_budget"), 1);
        t.tear_down();
    }
}

#[test]
fn a_wild_address_or_an_invalidated_region_gets_an_error_status() {
    let mut t = timed();
    t.deploy(B, OP, endless).unwrap();
    let wild = 0xDEAD_BEEFu64.to_le_bytes();
    assert_eq!(t.call_and_wait(OP, &wild, &[], 0).0, Some(CallStatus::ACCESS));
    let at = t.remote(B, 0).addr.to_le_bytes();
    let header = t.header(&at, 0, 0);
    t.call(OP, &header, &at);
    t.world.run(Duration::from_millis(1));
    let key = t.regions[B].key;
    t.world.hosts[B].nic.dereg_mr(key).unwrap();
    t.run();
    assert_eq!(t.status(0).map(|w| w.status), Some(CallStatus::ACCESS));
    assert_eq!(t.counted("kernel_access"), 2);
}

#[test]
fn calls_beyond_the_limit_of_invocations_are_delayed() {
    let limits = ExecutorLimits { invocations: 2, ..ExecutorLimits::default() };
    let port = PortTerms::flat(Duration::from_micros(5), 0);
    let mut t = kernel_pair(PairOptions::default(), limits, Some(port));
    t.deploy(B, OP, |context: Context| async move {
        let at = context.params(|p| Ok(u64::from_le_bytes(p.try_into().unwrap()))).await?;
        let mut word = [0; 8];
        for _ in 0..4 {
            context.read(at, &mut word).await?;
        }
        context.output(|out| out.extend_from_slice(&word)).await
    })
    .unwrap();
    let at = t.remote(B, 0).addr.to_le_bytes();
    for cookie in 0..12 {
        let header = t.header(&at, 8, cookie);
        t.call(OP, &header, &at);
    }
    t.run();
    // Expect: RNR NAKs and no error, and every call is answered.
    for cookie in 0..12 {
        assert_eq!(t.status(cookie).map(|w| w.status), Some(CallStatus::OK), "{cookie}");
    }
    assert!(t.counted("kernel_busy") > 0 && t.counted("tx_rnr_naks") > 0);
    assert_eq!(t.counted("kernel_calls"), 12);
    t.tear_down();
}

#[test]
fn a_kernel_that_does_not_keep_up_stops_the_stream_for_a_while() {
    let port = PortTerms::flat(Duration::from_micros(20), 0);
    let mut t = kernel_pair(PairOptions::default(), ExecutorLimits::default(), Some(port));
    let region = t.remote(B, 0).addr;
    t.deploy(B, OP, move |context: Context| async move {
        let mut to = region;
        while let Some(piece) = context.payload(|piece, _| piece.to_vec()).await? {
            context.write(to, &piece).await?;
            to += piece.len() as u64;
        }
        Ok(())
    })
    .unwrap();
    let payload: Vec<u8> = (0..200_000u32).map(|i| (i >> 3) as u8).collect();
    assert_eq!(t.call_and_wait(OP, b"", &payload, 0).0, Some(CallStatus::OK));
    assert_eq!(t.bytes(B, 0, 200_000), payload);
    assert!(t.counted("kernel_busy") > 0, "64 KB may wait, not more");
    t.tear_down();
}

#[test]
fn a_kernel_is_replaced_while_calls_are_in_flight() {
    let mut t = timed();
    t.deploy(B, OP, endless).unwrap();
    assert!(t.deploy(B, OP, echo).is_err(), "an op-code must not be deployed twice");
    let at = t.remote(B, 0).addr.to_le_bytes();
    let header = t.header(&at, 0, 1);
    t.call(OP, &header, &at);
    t.world.run(Duration::from_millis(1));
    t.kernels(B, |kernels, _| {
        use remora_offload::kernel::{AsyncProgram, Deployment};
        let program = Box::new(AsyncProgram::new(echo));
        kernels.replace(OP, Deployment::new("new", []), program).unwrap();
        assert_eq!((kernels.list().len(), kernels.running()), (1, 1));
    });
    assert_eq!(t.call_and_wait(OP, b"new", &[], 10), (Some(CallStatus::OK), b"new".to_vec()));
    assert_eq!(
        t.status(1).map(|w| w.status),
        Some(CallStatus::BUDGET),
        "the call in flight must end with the old kernel"
    );
    let header = t.header(&[0; 2], 0, 3);
    t.call_with(OP, &header, &[0; 2], &[0; 2000]);
    t.kernels(B, |kernels, io| kernels.undeploy(io, OP).unwrap());
    t.run();
    assert_eq!(t.status(3).map(|w| w.status), Some(CallStatus::NO_KERNEL));
    t.tear_down();
}

#[test]
fn undeploying_a_kernel_ends_its_calls_in_flight() {
    let mut t = timed();
    t.deploy(B, OP, endless).unwrap();
    let at = t.remote(B, 0).addr.to_le_bytes();
    let header = t.header(&at, 0, 1);
    t.call(OP, &header, &at);
    t.world.run(Duration::from_millis(1));
    t.kernels(B, |kernels, io| {
        kernels.undeploy(io, OP).unwrap();
        assert_eq!(kernels.running(), 0);
    });
    t.run();
    assert_eq!(t.status(1).map(|w| w.status), Some(CallStatus::UNLOADED));
    t.tear_down();
}

#[test]
fn closing_a_queue_pair_ends_its_invocations() {
    let mut t = timed();
    t.deploy(B, OP, endless).unwrap();
    let at = t.remote(B, 0).addr.to_le_bytes();
    let header = t.header(&at, 0, 1);
    t.call(OP, &header, &at);
    t.world.run(Duration::from_millis(1));
    let end = t.ends[B];
    end.go_to(&mut t.world, remora_nic::qp::State::Error);
    t.world.run(Duration::from_millis(1));
    assert_eq!(t.kernels(B, |kernels, _| kernels.running()), 0);
    assert_eq!(t.counted("kernel_dropped"), 1);
}

#[test]
fn the_host_answers_calls_without_a_kernel() {
    let mut t = pair();
    let fallback = t.kernels(B, |kernels, _| kernels.set_fallback(Box::new(|| ())));
    let header = t.header(b"params", 100, 0);
    t.call_with(OP, &header, b"params", &[5; 3000]);
    t.world.run(Duration::from_millis(1));
    let call = t.kernels(B, |kernels, _| kernels.next_fallback(fallback)).unwrap();
    assert_eq!((call.opcode, &call.params[..], call.payload.len()), (OP, &b"params"[..], 3000));
    t.kernels(B, |kernels, io| kernels.answer(io, call.id, CallStatus::OK, b"from the host"));
    t.run();
    assert_eq!(t.status(0).map(|w| (w.status, w.len)), Some((CallStatus::OK, 13)));
    assert_eq!(t.bytes(A, RESULT, 13), b"from the host");
    let header = t.header(b"", 100, 1);
    t.call(OP, &header, b"");
    t.world.run(Duration::from_millis(1));
    t.kernels(B, |kernels, io| kernels.end_fallback(io, fallback));
    t.run();
    assert_eq!(t.status(1).map(|w| w.status), Some(CallStatus::UNAVAILABLE));
    t.tear_down();
}

#[test]
fn a_second_fallback_takes_over_what_waits() {
    let mut t = pair();
    let first = t.kernels(B, |kernels, _| kernels.set_fallback(Box::new(|| ())));
    let header = t.header(b"", 100, 0);
    t.call(OP, &header, b"");
    t.world.run(Duration::from_millis(1));
    let second = t.kernels(B, |kernels, _| kernels.set_fallback(Box::new(|| ())));
    t.kernels(B, |kernels, io| kernels.end_fallback(io, first));
    assert!(t.kernels(B, |kernels, _| kernels.next_fallback(first)).is_none());
    let call = t.kernels(B, |kernels, _| kernels.next_fallback(second)).unwrap();
    t.kernels(B, |kernels, io| kernels.answer(io, call.id, CallStatus::OK, b"second"));
    t.run();
    assert_eq!(t.status(0).map(|w| (w.status, w.len)), Some((CallStatus::OK, 6)));
    t.kernels(B, |kernels, io| kernels.end_fallback(io, second));
    t.tear_down();
}

#[test]
fn the_host_calls_its_own_card() {
    let mut t = pair();
    t.deploy(B, OP, echo).unwrap();
    let word = t.remote(B, 5000);
    let (to, qpn) = (t.remote(B, 4000), t.ends[B].qpn);
    t.set(B, 5000, &[0; 16]);
    let header = Header {
        notify: Notify::Word(word),
        local: true,
        params_len: 5,
        to,
        max_len: 64,
        cookie: 3,
    };
    let mut call = header.to_bytes().to_vec();
    call.extend_from_slice(b"local and payload");
    let now = t.world.now;
    let host = &mut t.world.hosts[B];
    host.nic.call_kernel(now, &mut host.memory, qpn, OP, &call).unwrap();
    // Expect: results and status are in the host's own memory, and no packet was sent.
    assert_eq!(t.bytes(B, 4000, 17), b"local and payload");
    assert_eq!(t.bytes(B, 5008, 1), [17]);
    t.run();
    assert!(t.seen(|_| true).is_empty());
    t.tear_down();
}

#[test]
fn kernels_and_the_hosts_own_requests_share_a_queue_pair() {
    let mut t = pair();
    let at = t.remote(B, 0).addr;
    t.deploy(B, OP, move |context: Context| async move { context.send_memory(at, 100_000).await })
        .unwrap();
    let expected = t.fill(B, 0, 100_000);
    let theirs = t.fill(B, 200_000, 100_000);
    let header = t.header(b"", 100_000, 0);
    t.call(OP, &header, b"");
    let wr_id = t.write(B, 200_000, 500_000, 100_000);
    t.run();
    assert_eq!(t.status(0).map(|w| w.status), Some(CallStatus::OK));
    assert_eq!(t.bytes(A, RESULT, 100_000), expected);
    assert_eq!(t.bytes(A, 500_000, 100_000), theirs);
    // Expect: the kernel's messages leave no completion at the host.
    let done = t.sent(B);
    assert_eq!((done.len(), done[0].wr_id), (1, wr_id));
    t.tear_down();
}

// --- the built-in kernels -----------------------------------------------------------------------

#[test]
fn get_finds_values_in_buckets_and_chains_and_misses() {
    for mut t in [pair(), timed()] {
        t.deploy(B, OP, get::get).unwrap();
        let base = t.remote(B, 0).addr;
        let mut table = get::Table::new(4, 28);
        for key in 0..60u64 {
            let value = get::Value { addr: base + 8192 + key * 64, len: 64 };
            table.insert(key, value).unwrap();
            t.set(B, 8192 + key * 64, &[key as u8; 64]);
        }
        t.set(B, 0, table.bytes());
        let params = |key| {
            let entry = get::Table::hash(key, 4);
            get::Params { table: base, key, entry, chain_max: 0 }.to_bytes()
        };
        for key in 0..60 {
            let got = t.call_and_wait(OP, &params(key), &[], 64);
            assert_eq!(got, (Some(CallStatus::OK), vec![key as u8; 64]));
        }
        assert_eq!(t.call_and_wait(OP, &params(60), &[], 64).0, Some(CallStatus::NOT_FOUND));
        assert_eq!(t.call_and_wait(OP, &params(1), &[], 63).0, Some(CallStatus::TOO_LONG));
        assert_eq!(t.call_and_wait(OP, b"short", &[], 63).0, Some(CallStatus::BAD_PARAMS));
        // A chain that leads back to its own entry.
        let mut entry = [0; 64];
        entry[60..].copy_from_slice(&1u32.to_le_bytes());
        t.set(B, 0, &entry);
        let cycle = get::Params { table: base, key: 61, entry: 0, chain_max: 0 }.to_bytes();
        assert_eq!(t.call_and_wait(OP, &cycle, &[], 64).0, Some(CallStatus::BUDGET));
        t.tear_down();
    }
}

/// A pair whose second host has the traversal kernel, and the address of its memory.
fn traversing() -> (Pair, u64) {
    let mut t = timed();
    t.deploy(B, OP, traversal::traversal).unwrap();
    let base = t.remote(B, 0).addr;
    (t, base)
}

fn words(t: &mut Pair, at: u64, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    t.set(B, at, &bytes);
}

#[test]
fn traversal_follows_lists() {
    let (mut t, base) = traversing();
    // A list of 32 elements (StRoM Figure 6), its values, and a cycle at its end.
    for i in 0..32u64 {
        let next = base + if i == 31 { 0 } else { (i + 1) * 64 };
        words(&mut t, i * 64, &[i, next, base + 4096 + i * 8]);
        words(&mut t, 4096 + i * 8, &[i * 1000]);
    }
    let list = |key| traversal::Params::list(base, key, 8).to_bytes();
    for key in [0u64, 7, 31] {
        let expected = (key * 1000).to_le_bytes().to_vec();
        assert_eq!(t.call_and_wait(OP, &list(key), &[], 8), (Some(CallStatus::OK), expected));
    }
    assert_eq!(t.call_and_wait(OP, &list(32), &[], 8).0, Some(CallStatus::BUDGET));
    t.tear_down();
}

#[test]
fn traversal_follows_trees() {
    let (mut t, base) = traversing();
    // A tree: each node has two keys (at positions 0 and 4), each before its child's pointer, and
    // then the last child's pointer; leaves hold keys and value pointers in the same places.
    words(&mut t, 8192, &[10, base + 8256, 20, base + 8320, base + 8384]);
    for (leaf, keys) in [[3u64, 5], [11, 15], [21, 30]].into_iter().enumerate() {
        let value = |key: u64| base + 12_288 + key * 8;
        let at = 8256 + leaf as u64 * 64;
        words(&mut t, at, &[keys[0], value(keys[0]), keys[1], value(keys[1]), 0]);
        keys.iter().for_each(|k| words(&mut t, 12_288 + k * 8, &[k * 7]));
    }
    let tree = |key| traversal::Params {
        key_mask: 0b1_0001,
        value_position: 2,
        relative: true,
        next_position: Some(8),
        element_len: 40,
        descents: 1,
        descent_predicate: traversal::Predicate::LessThan,
        next_descends: true,
        ..traversal::Params::list(base + 8192, key, 8)
    };
    for key in [3u64, 5, 11, 15, 21, 30] {
        let got = t.call_and_wait(OP, &tree(key).to_bytes(), &[], 8);
        assert_eq!(got, (Some(CallStatus::OK), (key * 7).to_le_bytes().to_vec()), "{key}");
    }
    assert_eq!(t.call_and_wait(OP, &tree(12).to_bytes(), &[], 8).0, Some(CallStatus::NOT_FOUND));
    t.tear_down();
}

#[test]
fn traversal_follows_skip_lists() {
    let (mut t, base) = traversing();
    // A skip list: a node has the next element's key, a next pointer and a down pointer. On the
    // lowest level it holds the element's own key and value.
    let node = |t: &mut Pair, at: u64, key, next: u64, down: u64| {
        words(t, at, &[key, if next == 0 { 0 } else { base + next }, base + down]);
    };
    node(&mut t, 16_384, 50, 16_448, 16_512);
    node(&mut t, 16_448, u64::MAX, 0, 16_576);
    node(&mut t, 16_512, 10, 16_544, 20_000);
    node(&mut t, 16_544, 20, 16_576, 20_008);
    node(&mut t, 16_576, 50, 16_608, 20_016);
    node(&mut t, 16_608, 70, 0, 20_024);
    (0..4).for_each(|i| words(&mut t, 20_000 + i * 8, &[100 + i]));
    for (key, value) in [(10, 100u64), (20, 101), (50, 102), (70, 103)] {
        let skip = traversal::Params {
            descents: 1,
            descent_predicate: traversal::Predicate::LessThan,
            ..traversal::Params::list(base + 16_384, key, 8)
        };
        let got = t.call_and_wait(OP, &skip.to_bytes(), &[], 8);
        assert_eq!(got, (Some(CallStatus::OK), value.to_le_bytes().to_vec()), "{key}");
    }
    t.tear_down();
}

#[test]
fn consistency_reads_again_until_the_checksum_matches() {
    let mut t = timed();
    t.deploy(B, OP, consistency::consistency).unwrap();
    let data = t.fill(B, 0, 4088);
    let object = [data.clone(), consistency::checksum(&data).to_le_bytes().to_vec()].concat();
    let address = t.remote(B, 0).addr;
    let params = consistency::Params { address, len: 4096, readings: 0 }.to_bytes();
    t.set(B, 0, &object);
    assert_eq!(t.call_and_wait(OP, &params, &[], 4096), (Some(CallStatus::OK), object.clone()));
    // A program is writing the object when the call arrives, and finishes later.
    t.set(B, 100, &[0; 8]);
    let header = t.header(&params, 4096, 0);
    t.call(OP, &header, &params);
    t.world.run(Duration::from_micros(30));
    assert_eq!(t.status(0), None);
    t.set(B, 0, &object);
    t.run();
    assert_eq!(t.status(0).map(|w| (w.status, w.len)), Some((CallStatus::OK, 4096)));
    assert_eq!(t.bytes(A, RESULT, 4096), object);
    t.set(B, 100, &[0; 8]);
    assert_eq!(t.call_and_wait(OP, &params, &[], 4096).0, Some(CallStatus::INCONSISTENT));
    assert_eq!(t.counted("kernel_inconsistent"), 1);
    t.tear_down();
}

#[test]
fn hyperloglog_counts_by_rpc_write_and_as_a_bump_in_the_wire() {
    let mut t = pair();
    let kernel = hyperloglog::HyperLogLog::new(12);
    let make = kernel.clone();
    t.deploy(B, OP, move |context| make.clone().run(context)).unwrap();
    let (_, bytes) = numbers(20_000);
    let store = t.remote(B, 0).addr;
    let add = hyperloglog::Params { ask: hyperloglog::Ask::Add, precision: 0, store }.to_bytes();
    let (status, report) = t.call_and_wait(OP, &add, &bytes, 100);
    let report = hyperloglog::Report::parse(&report).unwrap();
    assert_eq!((status, report.count), (Some(CallStatus::OK), 20_000));
    assert!((report.estimate / 20_000.0 - 1.0).abs() < 0.05, "{report:?}");
    assert_eq!(t.bytes(B, 0, 160_000), bytes, "the payload must be stored as well");
    // As a receive kernel at B and as a send kernel at A: packets that are sent again count once.
    let sender = hyperloglog::HyperLogLog::new(12);
    let (tap, send_tap) = (
        t.kernels(B, |kernels, _| kernels.add_tap(vec![], kernel.tap())),
        t.kernels(A, |kernels, _| kernels.add_tap(vec![], sender.tap())),
    );
    let (key, qpn) = (t.regions[B].key, t.ends[A].qpn);
    t.world.hosts[B].nic.bind_kernel(Bound::Region(key), tap).unwrap();
    t.world.hosts[A].nic.bind_kernel(Bound::Send(qpn), send_tap).unwrap();
    kernel.with(|sketch| *sketch = hyperloglog::Sketch::new(12));
    t.rule(Rule::nth(9, Fate::Drop, |p| p.is(Operation::Write)));
    t.set(A, 0, &bytes);
    t.write(A, 0, 0, 160_000);
    t.run();
    assert_eq!(kernel.with(|s| s.count()), 20_000);
    let registers = |kernel: &hyperloglog::HyperLogLog| kernel.with(|s| s.registers().to_vec());
    assert_eq!(sender.with(|s| s.count()), 20_000);
    assert!(registers(&kernel) == registers(&sender), "both have seen the same values");
    assert_eq!(t.bytes(B, 0, 160_000), bytes);
    t.world.hosts[B].nic.unbind_kernel(Bound::Region(key)).unwrap();
    t.world.hosts[A].nic.unbind_kernel(Bound::Send(qpn)).unwrap();
    t.tear_down();
}

#[test]
fn shuffle_partitions_by_rpc_write_and_by_plain_write() {
    let mut t = pair();
    let kernel = shuffle::Shuffles::new();
    t.deploy_program(B, OP, kernel.program()).unwrap();
    let (numbers, bytes) = numbers(10_000);
    let address = t.remote(B, 0).addr;
    let mut sizes = vec![0; 1024];
    numbers.iter().for_each(|v| sizes[(v & 1023) as usize] += 1);
    let mut expected = Vec::new();
    for partition in 0..1024 {
        expected.extend(numbers.iter().filter(|v| *v & 1023 == partition));
    }
    let expected: Vec<u8> = expected.iter().flat_map(|v: &u64| v.to_le_bytes()).collect();
    let params = |ask| shuffle::Params { ask, bits: 10, session: 5 }.to_bytes();
    let values = params(shuffle::Ask::Values);
    assert_eq!(t.call_and_wait(OP, &values, &bytes, 16).0, Some(CallStatus::NOT_FOUND));
    let histogram = shuffle::Partition::histogram(address, &sizes);
    let ask = params(shuffle::Ask::Histogram);
    assert_eq!(t.call_and_wait(OP, &ask, &histogram, 16).0, Some(CallStatus::OK));
    assert_eq!(t.call_and_wait(OP, &values, &bytes, 16).0, Some(CallStatus::OK));
    assert_eq!(t.bytes(B, 0, 80_000), expected);
    assert_eq!(t.call_and_wait(OP, &values, &bytes, 16).0, Some(CallStatus::TOO_LONG), "full");
    // The same by plain WRITEs.
    t.set(B, 0, &[0; 80_000]);
    t.call_and_wait(OP, &ask, &histogram, 16);
    let grants = vec![remora_offload::kernel::Grant { key: t.regions[B].key, write: true }];
    let tap = t.kernels(B, |kernels, _| kernels.add_tap(grants, kernel.tap(5)));
    let qpn = t.ends[B].qpn;
    t.world.hosts[B].nic.bind_kernel(Bound::Receive(qpn), tap).unwrap();
    t.set(A, 0, &bytes);
    t.set(B, 500_000, &[9; 100]);
    t.write(A, 0, 500_000, 80_000);
    t.run();
    assert_eq!(t.bytes(B, 0, 80_000), expected);
    assert_eq!(t.bytes(B, 500_000, 100), [9; 100], "the WRITE's own address must not be written");
    t.world.hosts[B].nic.unbind_kernel(Bound::Receive(qpn)).unwrap();
    t.tear_down();
}

#[test]
fn shuffle_sends_partitions_from_where_the_values_are() {
    let mut t = pair();
    t.deploy(A, OP, shuffle_send::shuffle_send).unwrap();
    let (numbers, bytes) = numbers(4000);
    t.set(A, 0, &bytes);
    t.set(A, WORD, &[0; 16]);
    let (address, qpn) = (t.remote(A, 0).addr, t.ends[A].qpn);
    let target = |i: u64| shuffle_send::Target { qpn, to: t.remote(B, i * 20_000), values: 2500 };
    let targets = (0..4).map(target).collect();
    let params = shuffle_send::Params { address, values: 4000, targets }.to_bytes();
    let mut header = t.header(&params, 64, 0);
    header.local = true;
    let call = [header.to_bytes().to_vec(), params].concat();
    let now = t.world.now;
    let host = &mut t.world.hosts[A];
    host.nic.call_kernel(now, &mut host.memory, qpn, OP, &call).unwrap();
    t.run();
    assert_eq!(t.status(0).map(|w| (w.status, w.len)), Some((CallStatus::OK, 32)));
    for partition in 0..4 {
        let expected: Vec<u8> =
            numbers.iter().filter(|v| *v & 3 == partition).flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(t.bytes(B, partition * 20_000, expected.len() as u64), expected);
    }
    t.tear_down();
}

/// Rows cost by their bytes, and groups besides.
#[test]
fn groups_are_paid_for() {
    const GROUPS: u32 = 10_000;
    let group_by = Some(Column { offset: 0, width: 4, signed: false });
    let value = Column { offset: 0, width: 4, signed: false };
    let params = aggregate::Params { row_len: 4, value, group_by, groups_max: 0 }.to_bytes();
    let rows: Vec<u8> = (0..GROUPS).rev().flat_map(u32::to_le_bytes).collect();
    for (budget, result_bytes, status) in [
        (5000, 64 << 20, CallStatus::BUDGET),
        (20_000, 1 << 20, CallStatus::MEMORY),
        (20_000, 64 << 20, CallStatus::OK),
    ] {
        let limits = ExecutorLimits { result_bytes, ..ExecutorLimits::default() };
        let mut t = kernel_pair(PairOptions::default(), limits, None);
        let deployment = Deployment::new("aggregate", []).budget(budget);
        let program = Box::new(AsyncProgram::new(aggregate::aggregate));
        t.kernels(B, |kernels, _| kernels.deploy(OP, deployment, program)).unwrap();
        let got = t.call_and_wait(OP, &params, &rows, 480_000);
        assert_eq!(got.0, Some(status), "{budget} steps, {result_bytes} bytes");
        if status == CallStatus::OK {
            let groups = aggregate::Group::parse_all(&got.1);
            assert!(groups.iter().map(|group| group.key).eq(0..u64::from(GROUPS)));
        }
        t.tear_down();
    }
}

#[test]
fn filter_and_aggregate_process_streams() {
    let mut t = pair();
    t.deploy(B, OP, filter::filter).unwrap();
    t.deploy(B, OP + 1, aggregate::aggregate).unwrap();
    let (numbers, bytes) = numbers(25_000);
    let (params, wanted) = (is_lower(), lower(&numbers));
    let got = t.call_and_wait(OP, &params.to_bytes(), &bytes, 200_000);
    assert_eq!(got.0, Some(CallStatus::OK));
    assert!(got.1 == wanted, "{} of {} bytes", got.1.len(), wanted.len());
    let ragged = t.call_and_wait(OP, &params.to_bytes(), &bytes[..9], 200_000);
    assert_eq!(ragged.0, Some(CallStatus::BAD_PARAMS));
    let group_by = Some(Column { offset: 0, width: 1, signed: false });
    let params = aggregate::Params { row_len: 8, value: Column::u64(0), group_by, groups_max: 0 };
    let got = t.call_and_wait(OP + 1, &params.to_bytes(), &bytes, 100_000);
    let groups = aggregate::Group::parse_all(&got.1);
    assert_eq!((got.0, groups.len()), (Some(CallStatus::OK), 256));
    let of_three: Vec<u64> = numbers.iter().copied().filter(|v| v & 0xFF == 3).collect();
    assert_eq!(groups[3].count, of_three.len() as u64);
    assert_eq!(groups[3].sum, of_three.iter().map(|v| i128::from(*v)).sum());
    assert_eq!(Some(&groups[3].max), of_three.iter().max());
    // As a receive kernel: matching rows lie one after the other.
    let tap = Box::new(filter::FilterTap::new(is_lower()));
    let tap = t.kernels(B, |kernels, _| kernels.add_tap(vec![], tap));
    let key = t.regions[B].key;
    t.world.hosts[B].nic.bind_kernel(Bound::Region(key), tap).unwrap();
    t.set(A, 0, &bytes);
    t.write(A, 0, 0, 200_000);
    t.run();
    assert!(t.bytes(B, 0, wanted.len() as u64) == wanted);
    t.world.hosts[B].nic.unbind_kernel(Bound::Region(key)).unwrap();
    t.tear_down();
}
