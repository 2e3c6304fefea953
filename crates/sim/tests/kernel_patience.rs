//! How long kernels wait for payload and for room to send; and calls, for room for their answers.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use remora_nic::Psn;
use remora_nic::kernel::{CallStatus, Header, Notify, StatusWord};
use remora_nic::queue::{RemoteAddress, SendOp, Status};
use remora_nic::wire::{Dialect, Operation, Transport};
use remora_offload::kernel::{Context, ExecutorLimits};
use remora_sim::endpoint::{ConnectOptions, Endpoint, QueueOptions, connect};
use remora_sim::faults::{Fate, Rule};
use remora_sim::kernel::{CALL, RESULT, WORD, kernel_pair};
use remora_sim::pair::{A, B, Pair, PairOptions, statuses};
use remora_store::journal::Unlogged;
use remora_store::memory::Heap;
use remora_store::stats::Stats;
use remora_store::store::{Options, Store};
use remora_store::tablespace::{TablespaceId, TablespaceOptions};
use remora_store::way::call::{Call, Operation as StoreOperation};
use remora_store::way::kernel::StoreKernels;
use remora_store::way::long::LongCalls;

const OP: u64 = 0x77;
const HOGS: u64 = 0x78;
/// The bytes that a short buffer for results counts for.
const CHUNK: u64 = 64 << 10;

/// Returns its payload.
async fn echo(context: Context) -> Result<(), CallStatus> {
    while let Some(piece) = context.payload(|piece, _| piece.to_vec()).await? {
        context.output(|out| out.extend_from_slice(&piece)).await?;
    }
    Ok(())
}

/// Sends WRITEs on its requester's queue pair, many times.
async fn sends(context: Context) -> Result<(), CallStatus> {
    let words = context.params(|params| Ok(params.as_chunks::<8>().0.to_vec())).await?;
    let [addr, rkey] = [0, 1].map(|index| u64::from_le_bytes(words[index]));
    for number in 0..2000_u32 {
        let to = RemoteAddress { addr, rkey: rkey as u32 };
        context.send_to(context.qpn(), to, &number.to_le_bytes()).await?;
    }
    context.sent().await
}

/// A kernel may send for any time, as long as what it sends leaves and arrives.
#[test]
fn a_kernel_that_sends_for_long_is_not_congested() {
    let room_patience = Duration::from_micros(40);
    let limits = ExecutorLimits { room_patience, ..Default::default() };
    for is_cut in [false, true] {
        let mut t = kernel_pair(PairOptions::default(), limits, None);
        t.deploy(B, OP, sends).unwrap();
        let RemoteAddress { addr, rkey } = t.remote(A, RESULT);
        let params = [addr, rkey.into()].map(u64::to_le_bytes).concat();
        let header = t.header(&params, 64, 0);
        let began = t.world.now;
        t.call(OP, &header, &params);
        if is_cut {
            t.world.run(Duration::from_micros(100));
            t.rule(Rule::all(Fate::Drop, |seen| seen.from == B));
            t.world.run(3 * room_patience);
            assert_eq!(t.kernels(B, |kernels, _| kernels.running()), 0, "it waits no longer");
            t.world.network.heal();
        }
        t.run();
        let status = if is_cut { CallStatus::CONGESTED } else { CallStatus::OK };
        assert_eq!(t.status(0).map(|word| word.status), Some(status));
        assert!(is_cut || t.world.now.since(began) > 4 * room_patience, "it took long");
        t.tear_down();
    }
}

/// Payload that pauses is waited for, but a requester that falls silent does not hold a place for
/// ever.
#[test]
fn a_requester_that_falls_silent_in_the_middle_frees_its_place() {
    const NO_KERNEL: u64 = OP + 1;
    let payload_patience = Duration::from_millis(4);
    let limits = ExecutorLimits { invocations: 1, payload_patience, ..Default::default() };
    for (opcode, resumes) in [(OP, false), (NO_KERNEL, false), (OP, true)] {
        let mut t = kernel_pair(PairOptions::default(), limits, None);
        t.deploy(B, OP, echo).unwrap();
        t.kernels(B, |kernels, _| kernels.set_fallback(Box::new(|| ())));
        // All packets of the call after the first three are lost.
        let mut came = 0;
        t.rule(Rule::all(Fate::Drop, move |seen| {
            came += u32::from(seen.op.is_some_and(|op| op.operation == Operation::RpcWrite));
            came > 3
        }));
        let header = t.header(&[], 4096, 0);
        t.call_with(opcode, &header, &[], &[9; 4000]);
        t.world.run(payload_patience / 2);
        assert_eq!(t.kernels(B, |kernels, _| kernels.running()), 1);
        if resumes {
            t.world.network.heal();
        }
        t.world.run(3 * payload_patience);
        assert_eq!(t.kernels(B, |kernels, _| kernels.running()), 0);
        assert_eq!(t.counted("kernel_late"), u64::from(!resumes));
        let status = t.status(0).map(|word| word.status);
        assert_eq!(status, resumes.then_some(CallStatus::OK), "resumes: {resumes}");
    }
}

/// Keeps memory of the card for results: so many bytes for so many microseconds.
async fn hogs(context: Context) -> Result<(), CallStatus> {
    let words = context.params(|params| Ok(params.as_chunks::<8>().0.to_vec())).await?;
    let [addr, len, micros] = [0, 1, 2].map(|index| u64::from_le_bytes(words[index]));
    context.fetch(addr, len as u32).await?;
    context.pause(Duration::from_micros(micros)).await?;
    Err(CallStatus(200))
}

/// A second connection between the hosts of a pair.
fn another(t: &mut Pair) -> [Endpoint; 2] {
    let pds = t.ends.map(|end| end.pd);
    let ends = [A, B].map(|of| {
        let place = (of, pds[of]);
        Endpoint::create(&mut t.world, place, Transport::Rc, &QueueOptions::default(), None)
    });
    let options = ConnectOptions { dialect: Dialect::KERNELS, ..ConnectOptions::default() };
    connect(&mut t.world, (&ends[A], &ends[B]), &options, (Psn::new(70), Psn::new(9000)));
    ends
}

/// However many calls one queue pair has that do not end, that of another one begins.
#[test]
fn a_queue_pair_leaves_invocations_to_others() {
    let limits = ExecutorLimits { invocations: 4, ..Default::default() };
    let mut t = kernel_pair(PairOptions::default(), limits, None);
    t.deploy(B, HOGS, hogs).unwrap();
    t.deploy(B, OP, echo).unwrap();
    let params = [t.remote(B, 0).addr, 8, 10_000].map(u64::to_le_bytes).concat();
    for cookie in 1..=4 {
        let header = t.header(&params, 8, cookie);
        t.call(HOGS, &header, &params);
    }
    t.world.run(Duration::from_millis(1));
    assert_eq!(t.kernels(B, |kernels, _| kernels.running()), 2, "as many as are left");
    t.ends = another(&mut t);
    let header = t.header(&[], 8, 0);
    t.call_with(OP, &header, &[], &[9; 8]);
    t.world.run(Duration::from_millis(1));
    assert_eq!(t.status(0).map(|word| word.status), Some(CallStatus::OK));
    t.run();
    for cookie in 1..=4 {
        assert_eq!(t.status(cookie).map(|word| word.status), Some(CallStatus(200)), "{cookie}");
    }
}

/// Outputs so many bytes.
async fn outputs(context: Context) -> Result<(), CallStatus> {
    let len = context.params(|params| Ok(u64::from_le_bytes(params.try_into().unwrap()))).await?;
    for _ in 0..len / CHUNK {
        context.output(|out| out.resize(CHUNK as usize, 7)).await?;
        context.settle().await?;
    }
    context.output(|out| out.resize(out.len() + (len % CHUNK) as usize, 7)).await
}

/// A peer that acknowledges no answers keeps its buffers, short or long, and leaves others theirs.
#[test]
fn a_silent_peer_leaves_buffers_to_others() {
    for (len, calls) in [(8, 60), (CHUNK, 60), (4 * CHUNK, 20)] {
        let (result_bytes, room_patience) = (16 * CHUNK as usize, Duration::from_millis(1));
        let limits = ExecutorLimits { result_bytes, room_patience, ..Default::default() };
        let mut t = kernel_pair(PairOptions::default(), limits, None);
        t.deploy(B, OP, outputs).unwrap();
        let silent = t.ends[B].qpn;
        t.rule(Rule::all(Fate::Drop, move |seen| seen.is_ack() && seen.bth.dest_qp == silent));
        let call = |t: &mut Pair, len: u64, cookie| {
            let header = t.header(&len.to_le_bytes(), len as u32, cookie);
            t.call(OP, &header, &len.to_le_bytes());
        };
        for _ in 0..calls {
            call(&mut t, len, 0);
        }
        t.world.run(Duration::from_micros(500));
        t.ends = another(&mut t);
        for cookie in 1..20 {
            call(&mut t, 8, cookie);
            t.world.run(Duration::from_micros(50));
            let status = t.status(cookie).map(|word| word.status);
            assert_eq!(status, Some(CallStatus::OK), "{len}: {cookie}");
        }
        call(&mut t, 4 * CHUNK, 20);
        t.world.run(Duration::from_millis(1));
        assert_eq!(t.status(20).map(|word| word.status), Some(CallStatus::OK), "{len}");
        assert!(t.world.hosts[B].nic.in_use().kernel_sends > 0, "it is silent still");
    }
}

/// A kernel answers however few messages of the card others leave, one after the other.
#[test]
fn results_of_many_messages_leave_where_others_have_them_all() {
    let options =
        PairOptions { config: |config| config.max_kernel_sends = 0, ..PairOptions::default() };
    let mut t = kernel_pair(options, ExecutorLimits::default(), None);
    t.deploy(B, OP, outputs).unwrap();
    let (status, results) = t.call_and_wait(OP, &(5 * CHUNK).to_le_bytes(), &[], 5 * CHUNK as u32);
    assert_eq!((status, results.len()), (Some(CallStatus::OK), 5 * CHUNK as usize));
    t.tear_down();
}

/// Results of a local call are copied; others have their turns meanwhile.
#[test]
fn long_results_of_a_local_call_are_copied_by_pieces() {
    const LEN: u32 = 3 << 20;
    let options = PairOptions { region: 8 << 20, ..PairOptions::default() };
    let mut t = kernel_pair(options, ExecutorLimits::default(), None);
    let at = t.remote(B, 0).addr;
    t.deploy(B, OP, move |context: Context| async move { context.send_memory(at, LEN).await })
        .unwrap();
    let expected = t.fill(B, 0, LEN.into());
    let (to, word, qpn) = (t.remote(B, 4 << 20), t.remote(B, 7 << 20), t.ends[B].qpn);
    let notify = Notify::Word(word);
    let header = Header { notify, local: true, params_len: 0, to, max_len: LEN, cookie: 3 };
    let (now, host) = (t.world.now, &mut t.world.hosts[B]);
    host.nic.call_kernel(now, &mut host.memory, qpn, OP, &header.to_bytes()).unwrap();
    assert_eq!(t.kernels(B, |kernels, _| kernels.running()), 1, "there are turns to come");
    t.run();
    let ended = StatusWord { cookie: 3, len: LEN, status: CallStatus::OK };
    assert_eq!(t.bytes(B, 7 << 20, 16), ended.to_bytes());
    assert!(t.bytes(B, 4 << 20, LEN.into()) == expected);
    t.tear_down();
}

/// Needs a short buffer for results, then a long one.
async fn grows(context: Context) -> Result<(), CallStatus> {
    let addr = context.params(|params| Ok(u64::from_le_bytes(params.try_into().unwrap()))).await?;
    context.output(|_| ()).await?;
    context.fetch(addr, 3 * CHUNK as u32).await
}

/// A pair whose card has memory for four chunks of results, all of it in use: three chunks for so
/// many microseconds, and one chunk. A call of [`grows`] waits for some.
fn hogged(room_patience: Duration, micros: [u64; 2]) -> Pair {
    let result_bytes = 4 * CHUNK as usize;
    let limits = ExecutorLimits { room_patience, result_bytes, ..Default::default() };
    let mut t = kernel_pair(PairOptions::default(), limits, None);
    t.deploy(B, HOGS, hogs).unwrap();
    t.deploy(B, OP, grows).unwrap();
    t.fill(B, 0, 3 * CHUNK);
    let addr = t.remote(B, 0).addr;
    for (cookie, len, micros) in [(1, 3 * CHUNK, micros[0]), (2, CHUNK, micros[1])] {
        let params = [addr, len, micros].map(u64::to_le_bytes).concat();
        let header = t.header(&params, 3 * CHUNK as u32, cookie);
        t.call(HOGS, &header, &params);
    }
    let params = addr.to_le_bytes();
    let header = t.header(&params, 3 * CHUNK as u32, 0);
    t.call(OP, &header, &params);
    t.world.run(Duration::from_micros(10));
    assert_eq!(t.kernels(B, |kernels, _| kernels.running()), 3);
    t
}

/// A kernel that waits for a buffer a second time waits as long as the first time.
#[test]
fn a_buffer_that_comes_is_progress() {
    // The short one comes before the patience is over; the long one after it.
    let mut t = hogged(Duration::from_micros(100), [150, 60]);
    t.run();
    assert_eq!(t.status(0).map(|word| word.status), Some(CallStatus::OK));
    t.tear_down();
    // None comes.
    let mut t = hogged(Duration::from_micros(100), [5000, 60]);
    t.run();
    assert_eq!(t.status(0).map(|word| word.status), Some(CallStatus::CONGESTED));
}

/// A card that stood still finds both: room has come, and the time for it is over.
#[test]
fn room_that_has_come_counts_before_the_time_that_is_over() {
    let patience = Duration::from_micros(100);
    for comes in [true, false] {
        let mut t = hogged(patience, [100_000, 100_000]);
        t.world.now = t.world.now + 2 * patience;
        if comes {
            t.kernels(B, |kernels, io| kernels.undeploy(io, HOGS)).unwrap();
        }
        t.run();
        let status = if comes { CallStatus::OK } else { CallStatus::CONGESTED };
        assert_eq!(t.status(0).map(|word| word.status), Some(status));
    }
}

/// Both ends of a connection call the other, while the room for answers is others'. Each end's
/// answers are in order behind calls of its own, which the other end may refuse.
#[test]
fn calls_both_ways_do_not_wait_for_each_other_for_ever() {
    const CALLS: u32 = 2048;
    let mut t = kernel_pair(
        PairOptions {
            queues: QueueOptions {
                sends: CALLS,
                completions: 2 * CALLS as usize,
                ..QueueOptions::default()
            },
            config: |config| config.max_kernel_sends = 0,
            ..PairOptions::default()
        },
        ExecutorLimits::default(),
        None,
    );
    for (of, peer) in [(A, B), (B, A)] {
        t.deploy(peer, OP, echo).unwrap();
        let notify = Notify::Word(t.remote(of, WORD));
        let header = Header { notify, to: t.remote(of, RESULT), max_len: 64, ..Header::default() };
        let call = [&header.to_bytes()[..], &[7; 8]].concat();
        t.set(of, CALL, &call);
        for _ in 0..CALLS {
            t.ask(of, SendOp::RpcWrite { opcode: OP }, CALL, call.len() as u32);
        }
    }
    t.run();
    for of in [A, B] {
        assert_eq!(statuses(&t.sent(of)), vec![Status::Success; CALLS as usize]);
        assert_eq!(t.world.hosts[of].nic.in_use().kernel_sends, 0);
        assert_eq!(t.world.hosts[of].nic.counters().kernel_done, u64::from(CALLS));
    }
    t.tear_down();
}

/// A store's kernel for puts, behind a clock that goes on by `step_ms` whenever it is looked at.
fn storing(step_ms: u64) -> (Pair, Arc<Store<Heap>>, TablespaceId, Arc<AtomicU64>) {
    let mut t = kernel_pair(PairOptions::default(), ExecutorLimits::default(), None);
    let options = Options::new(8 << 20, 1);
    let memory = Heap::new(options.memory_len());
    let store = Arc::new(Store::new(memory, Unlogged::default(), options).unwrap());
    let default_expiry_ms = Some(EXPIRES_MS);
    let space = TablespaceOptions { default_expiry_ms, ..TablespaceOptions::new("brief") };
    let space = store.create_tablespace(&space).unwrap();
    let now = Arc::new(AtomicU64::new(0));
    let looks = now.clone();
    let clock = move || {
        let now_ms = looks.fetch_add(step_ms, Ordering::Relaxed) + step_ms;
        SystemTime::UNIX_EPOCH + Duration::from_millis(now_ms)
    };
    let long = Arc::new(LongCalls::without_thread(0));
    let kernels = Arc::new(StoreKernels::new(&store, &Arc::new(Stats::default()), &long, clock));
    let put = move |context| kernels.clone().serve(StoreOperation::Put, context);
    t.deploy(B, StoreOperation::Put.opcode(), put).unwrap();
    (t, store, space, now)
}

const EXPIRES_MS: u64 = 1_000_000;

/// Puts a value of so many bytes.
fn put_by_kernel(t: &mut Pair, space: TablespaceId, len: usize) -> Option<CallStatus> {
    let (mut bytes, value) = (Vec::new(), vec![7; len]);
    let call = Call { tablespace: space.0, key: b"key", value: &value, ..Call::default() };
    call.write(&mut bytes).unwrap();
    t.call_and_wait(StoreOperation::Put.opcode(), &[], &bytes, 64).0
}

/// A call that comes in many packets is judged by the time when it is carried out.
#[test]
fn a_long_call_is_judged_by_the_time_when_it_has_come() {
    for len in [30_000, 100_000] {
        let (mut t, store, space, now) = storing(10);
        assert_eq!(put_by_kernel(&mut t, space, len), Some(CallStatus::OK));
        let end = now.load(Ordering::Relaxed);
        assert!(end > 50, "the clock was looked at while it came");
        let found = store.get(space, b"key", 1, &mut Vec::new()).unwrap();
        // The last look is for how long the call took.
        assert_eq!(found.expires_ms, Some(end - 10 + EXPIRES_MS));
        t.tear_down();
    }
}

/// A call that trickles holds no room for ever, although each of its packets comes in time.
#[test]
fn a_call_that_trickles_is_late() {
    let (mut t, store, space, _) = storing(1000);
    assert_eq!(put_by_kernel(&mut t, space, 100_000), Some(CallStatus::LATE));
    assert_eq!(store.count(space), 0);
    assert_eq!(put_by_kernel(&mut t, space, 3000), Some(CallStatus::OK));
    t.tear_down();
}
