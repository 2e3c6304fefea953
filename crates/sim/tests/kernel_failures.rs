//! Calls that end with an error status, while their connection goes on: results that are not whole,
//! and parameters that do not fit.

#[path = "support/echo.rs"]
mod echo;

use remora_nic::kernel::{CallStatus, HEADER_LEN, Header, Notify, StatusWord};
use remora_nic::queue::{RemoteAddress, Status};
use remora_offload::kernel::{Context, ExecutorLimits};
use remora_sim::endpoint::ConnectOptions;
use remora_sim::kernel::{RESULT, WORD, kernel_pair};
use remora_sim::pair::{A, B, Pair, PairOptions};

use self::echo::echo;

const OP: u64 = 0x77;

fn pair() -> Pair {
    kernel_pair(PairOptions::default(), ExecutorLimits::default(), None)
}

#[test]
fn a_region_that_is_gone_before_its_value_is_sent_gets_an_error_status() {
    let mut t = pair();
    let at = t.remote(B, 64).addr;
    t.deploy(B, OP, move |context: Context| async move { context.send_memory(at, 100).await })
        .unwrap();
    let header = t.header(b"", 100, 0);
    t.call(OP, &header, b"");
    // The RPC arrives. The region is deregistered before B's card sends the value.
    while t.counted("kernel_calls") == 0 {
        t.world.step();
    }
    let key = t.regions[B].key;
    t.world.hosts[B].nic.dereg_mr(key).unwrap();
    t.run();
    let word = t.status(0).unwrap();
    assert_eq!((word.status, word.len), (CallStatus::ACCESS, 0));
    t.write(B, 0, 0, 0);
    t.run();
    assert_eq!(t.sent(B)[0].status, Status::Success, "the connection must stay up");
}

/// The earlier part of a result is dropped before the call has ended, or after.
#[test]
fn a_result_without_one_of_its_parts_gets_an_error_status() {
    for (waits, notify) in [(false, 2), (true, 2), (false, 1), (false, 3), (true, 3)] {
        let mut t = pair();
        let at = t.remote(B, 64).addr;
        let two_parts = move |context: Context| async move {
            context.send_memory(at, 100).await?;
            context.output(|out| out.extend_from_slice(b"the end")).await?;
            for _ in 0..if waits { 100 } else { 0 } {
                context.yield_now().await?;
            }
            Ok(())
        };
        t.deploy(B, OP, two_parts).unwrap();
        t.receive(A, RESULT, 0);
        let word = t.remote(A, WORD);
        let notify = match notify {
            1 => Notify::Immediate,
            2 => Notify::Word(word),
            _ => Notify::Both(word),
        };
        let header = Header { notify, ..t.header(b"", 200, 0) };
        t.set(A, WORD, &[0; 16]);
        t.call(OP, &header, b"");
        while t.counted("kernel_calls") == 0 {
            t.world.step();
        }
        assert_eq!(t.kernels(B, |kernels, _| kernels.running()), usize::from(waits));
        let key = t.regions[B].key;
        t.world.hosts[B].nic.dereg_mr(key).unwrap();
        t.run();
        if notify != Notify::Immediate {
            let word = t.status(0).expect("the call has ended");
            assert_eq!((word.status, word.len), (CallStatus::ACCESS, 0), "{notify:?} {waits}");
        }
        if !matches!(notify, Notify::Word(_)) {
            let imm = t.received(A)[0].imm_or_key;
            let (status, _) = CallStatus::from_immediate(imm);
            assert_eq!(status, CallStatus::ACCESS, "{notify:?} {waits}");
        }
        // The connection and the card's buffers are as before.
        let short = |context: Context| async move {
            context.output(|out| out.extend_from_slice(b"whole")).await
        };
        t.deploy(B, OP + 1, short).unwrap();
        let called = t.call_and_wait(OP + 1, b"", &[], 64);
        assert_eq!(called, (Some(CallStatus::OK), b"whole".to_vec()));
    }
}

/// Its first packet has no room for the parameters that the header names.
#[test]
fn a_call_with_parameters_longer_than_its_first_packet_gets_an_error_status() {
    let mut t = pair();
    t.deploy(B, OP, echo).unwrap();
    let mtu = ConnectOptions::default().mtu.bytes() as usize;
    for room in [mtu - HEADER_LEN + 1, 3 * mtu] {
        let params = vec![5; room];
        let (status, got) = t.call_and_wait(OP, &params, &[6; 5000], 64);
        assert_eq!((status, got), (Some(CallStatus::BAD_PARAMS), vec![]), "{room} bytes");
    }
    assert_eq!((t.counted("kernel_calls"), t.counted("kernel_bad_params")), (0, 2));
    let params = vec![5; mtu - HEADER_LEN];
    let (status, got) = t.call_and_wait(OP, &params, &[6; 5000], 9000);
    assert_eq!(status, Some(CallStatus::OK));
    assert_eq!(got, [params, vec![6; 5000]].concat());
    t.tear_down();
}

/// A local call whose results cannot be written has failed, and has none.
#[test]
fn a_local_call_without_a_place_for_its_results_has_none() {
    let mut t = pair();
    t.deploy(B, OP, echo).unwrap();
    let (word, qpn) = (t.remote(B, 5000), t.ends[B].qpn);
    let to = RemoteAddress { addr: word.addr + (1 << 30), ..word };
    let (notify, cookie) = (Notify::Word(word), 3);
    let header = Header { notify, local: true, params_len: 5, to, max_len: 64, cookie };
    let call = [&header.to_bytes()[..], b"local"].concat();
    let (now, host) = (t.world.now, &mut t.world.hosts[B]);
    host.nic.call_kernel(now, &mut host.memory, qpn, OP, &call).unwrap();
    let ended = StatusWord { cookie, len: 0, status: CallStatus::ACCESS };
    assert_eq!(t.bytes(B, 5000, 16), ended.to_bytes());
    assert_eq!((t.counted("kernel_access"), t.counted("kernel_done")), (1, 0));
    t.tear_down();
}
