//! What ended is used again: the number of a closed queue pair while its invocations still run, and
//! buffers of results.

use core::time::Duration;

use remora_nic::kernel::CallStatus;
use remora_nic::queue::RemoteAddress;
use remora_nic::wire::{Dialect, Op, Operation};
use remora_nic::{Psn, QpFlags, QpInit};
use remora_offload::kernel::builtin::consistency;
use remora_offload::kernel::{Context, ExecutorLimits};
use remora_sim::endpoint::{ConnectOptions, QueueOptions, connect, ring};
use remora_sim::faults::{Fate, Rule};
use remora_sim::hardware::PortTerms;
use remora_sim::kernel::{RESULT, WORD, kernel_pair};
use remora_sim::pair::{A, B, Pair, PairOptions};

/// Op-codes of kernels that wait for memory, for payload, and for room to send, and of a call for
/// the host.
const READS: u64 = 1;
const TAKES: u64 = 2;
const SENDS: u64 = 3;
const HOST: u64 = 4;
/// The number of a card's first fallback.
const FALLBACK: u32 = 1;

/// The word at `at` of the parameters.
async fn param(context: Context, at: usize) -> Result<u64, CallStatus> {
    let word = |params: &[u8]| params.get(8 * at..).and_then(|rest| rest.first_chunk().copied());
    let word = context.params(|params| word(params).ok_or(CallStatus::BAD_PARAMS)).await?;
    Ok(u64::from_le_bytes(word))
}

/// Returns the content of memory, many times.
async fn reads(context: Context) -> Result<(), CallStatus> {
    let at = param(context, 0).await?;
    let mut bytes = [0; 64];
    for _ in 0..20 {
        context.read(at, &mut bytes).await?;
        context.output(|out| out.extend_from_slice(&bytes)).await?;
    }
    Ok(())
}

/// Returns its payload.
async fn takes(context: Context) -> Result<(), CallStatus> {
    while let Some(piece) = context.payload(|piece, _| piece.to_vec()).await? {
        context.output(|out| out.extend_from_slice(&piece)).await?;
    }
    Ok(())
}

/// Sends WRITEs on its requester's queue pair, many times.
async fn sends(context: Context) -> Result<(), CallStatus> {
    let to =
        RemoteAddress { addr: param(context, 1).await?, rkey: param(context, 2).await? as u32 };
    let mut bytes = [0; 64];
    for _ in 0..100 {
        context.read(param(context, 0).await?, &mut bytes).await?;
        context.send_to(context.qpn(), to, &bytes).await?;
    }
    context.sent().await
}

/// A pair whose memory takes time, so that a queue pair can be closed while a kernel waits.
fn pair() -> Pair {
    let port = PortTerms::flat(Duration::from_micros(50), 80);
    let options = PairOptions { config: |config| config.qpn_bits = 10, ..PairOptions::default() };
    let mut t = kernel_pair(options, ExecutorLimits::default(), Some(port));
    t.deploy(B, READS, reads).unwrap();
    t.deploy(B, TAKES, takes).unwrap();
    t.deploy(B, SENDS, sends).unwrap();
    assert_eq!(t.kernels(B, |kernels, _| kernels.set_fallback(Box::new(|| ()))), FALLBACK);
    t
}

/// Closes a host's queue pair and creates others until `wanted` accepts the number.
fn renew(t: &mut Pair, of: usize, wanted: impl Fn(u32) -> bool) {
    let end = t.ends[of];
    let host = &mut t.world.hosts[of];
    host.nic.destroy_qp(end.qpn).unwrap();
    let queues = QueueOptions::default();
    let init = QpInit {
        pd: end.pd,
        transport: end.transport,
        send_cq: end.send_cq,
        recv_cq: end.recv_cq,
        srq: None,
        sq: ring(host, queues.sends, queues.sges, queues.inline),
        rq: ring(host, queues.receives, queues.sges, 0),
        signal_all: queues.signal_all,
        flags: QpFlags::empty(),
        client: 0,
    };
    // Numbers are random. Of ten bits, every number comes again within some thousand.
    for _ in 0..100_000 {
        t.ends[of].qpn = t.world.hosts[of].nic.create_qp(init).unwrap();
        if wanted(t.ends[of].qpn) {
            return;
        }
        t.world.hosts[of].nic.destroy_qp(t.ends[of].qpn).unwrap();
    }
    panic!("no queue pair has the number");
}

#[test]
fn answers_of_a_closed_queue_pair_do_not_reach_the_next_of_its_number() {
    let params = |t: &Pair| -> Vec<u8> {
        let result = t.remote(A, RESULT);
        let words = [t.remote(B, 0).addr, result.addr, result.rkey.into()];
        words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect()
    };
    // At once, between all kinds of steps, and after all invocations have ended that can end.
    for micros in [5, 20, 60, 130, 400, 900, 8000] {
        let mut t = pair();
        t.set(B, 0, &[7; 64]);
        // The last packet of the payload never arrives.
        let ends = |op: &Op| op.operation == Operation::RpcWrite && op.position.ends();
        t.rule(Rule::all(Fate::Drop, move |p| p.op.is_some_and(ends)));
        let bytes = params(&t);
        for (cookie, opcode) in [(0, READS), (2, SENDS), (3, HOST)] {
            let header = t.header(&bytes, 4096, cookie);
            t.call(opcode, &header, &bytes);
        }
        let header = t.header(&[], 4096, 1);
        t.call_with(TAKES, &header, &[], &[9; 3000]);
        t.world.run(Duration::from_micros(micros));
        let host_call = t.kernels(B, |kernels, _| kernels.next_fallback(FALLBACK));
        let running = t.kernels(B, |kernels, _| kernels.running());
        assert!(running > 0 || micros == 5, "no invocation is in flight after {micros} µs");

        let number = t.ends[B].qpn;
        renew(&mut t, B, |qpn| qpn == number);
        let old = t.ends[A].qpn;
        renew(&mut t, A, |qpn| qpn != old);
        assert_eq!(t.kernels(B, |kernels, _| kernels.running()), 0);
        t.world.network.heal();
        let options = ConnectOptions { dialect: Dialect::KERNELS, ..ConnectOptions::default() };
        let ends = t.ends;
        connect(&mut t.world, (&ends[A], &ends[B]), &options, (Psn::new(70), Psn::new(9000)));
        // The host answers a call whose queue pair is gone.
        if let Some(call) = host_call {
            t.kernels(B, |kernels, io| kernels.answer(io, call.id, CallStatus::OK, &[8; 64]));
        }
        let (results, words) = (vec![0xEE; 8192], vec![0; 64]);
        t.set(A, RESULT, &results);
        t.set(A, WORD, &words);
        t.run();
        // Expect: neither results nor a status word reach the new queue pair.
        assert!(t.bytes(A, RESULT, 8192) == results, "{micros} µs");
        assert_eq!(t.bytes(A, WORD, 64), words, "{micros} µs");
        assert_eq!(t.counted("kernel_dropped"), running as u64, "{micros} µs");
        // The new queue pair works like any other.
        let (status, got) = t.call_and_wait(READS, &params(&t), &[], 4096);
        assert_eq!((status, got), (Some(CallStatus::OK), vec![7; 20 * 64]));
        let (status, got) = t.call_and_wait(TAKES, &[], &[5; 3000], 4096);
        assert_eq!((status, got), (Some(CallStatus::OK), vec![5; 3000]));
        t.tear_down();
    }
}

#[test]
fn refused_and_torn_objects_take_no_buffers_away() {
    let limits = ExecutorLimits { result_bytes: 2 << 20, ..Default::default() };
    let mut t = kernel_pair(PairOptions::default(), limits, None);
    t.deploy(B, READS, consistency::consistency).unwrap();
    let len = 1 << 20;
    let call = |t: &mut Pair, address, len| {
        let params = consistency::Params { address, len, readings: 1 }.to_bytes();
        t.call_and_wait(READS, &params, &[], len).0
    };
    for _ in 0..40 {
        assert_eq!(call(&mut t, 0x10, len), Some(CallStatus::ACCESS));
    }
    // One that is longer than what is sent at once comes whole, or not at all.
    let data = t.fill(B, 0, 150_000);
    t.set(B, 150_000, &consistency::checksum(&data).to_le_bytes());
    let there = t.remote(B, 0).addr;
    assert_eq!(call(&mut t, there, 150_008), Some(CallStatus::OK));
    for _ in 0..40 {
        assert_eq!(call(&mut t, there, 200_000), Some(CallStatus::INCONSISTENT));
    }
    assert_eq!(call(&mut t, 0x10, len), Some(CallStatus::ACCESS));
    t.tear_down();
}
