//! Kernels between two devices of one process, over real sockets.

#[path = "support/numbers.rs"]
mod numbers;
mod support;
#[path = "support/until.rs"]
mod until;

use std::time::Duration;

use numbers::{is_lower, lower, numbers};
use remora::kernel::builtin::{self, RemoteTable};
use remora::kernel::{
    AsyncProgram, Bound, CallFailure, CallStatus, Context, DeployError, Deployment, Header,
    KernelClient, Notify, StatusWord, Tap,
};
use remora::nic::Access;
use remora::nic::qp::Mtu;
use remora::nic::queue::{Data, Opcode, SendFlags, SendOp, SendRequest, Status, WorkKind};
use remora::offload::kernel::builtin::column::Column;
use remora::offload::kernel::builtin::{
    aggregate, consistency, get, hyperloglog, opcode, shuffle, traversal,
};
use remora::offload::kernel::{Passing, TapIo, Verdict};
use remora::{ConnectionParams, MemoryRegion};
use support::{end, pair};
use until::until_some;

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_value_is_fetched_in_one_call() {
    let (_a, b, mut client) = pair();
    b.device.deploy_builtin(&[b.memory.grant_read()]).unwrap();
    assert_eq!(b.device.kernels().len(), 8);
    let mut table = get::Table::new(16, 48);
    for key in 0..100u64 {
        let at = (64 + key) << 10;
        table.insert(key, get::Value { addr: b.memory.remote(at).addr, len: 700 }).unwrap();
        b.memory.write_at(at as usize, &[key as u8; 700]).unwrap();
    }
    b.memory.write_at(0, table.bytes()).unwrap();
    let remote = RemoteTable { table: b.memory.remote(0).addr, heads: 16 };
    let mut value = Vec::new();
    for key in 0..100 {
        value.clear();
        assert!(remote.get(&mut client, key, &mut value).unwrap());
        assert_eq!(value, [key as u8; 700]);
    }
    assert!(!remote.get(&mut client, 100, &mut value).unwrap());
    // Several calls at once.
    let tickets: Vec<_> = (0..8)
        .map(|key| client.begin(opcode::GET, &remote.params(key).to_bytes()).unwrap())
        .collect();
    assert!(matches!(client.begin(opcode::GET, &[]), Err(CallFailure::Full(8))));
    for (key, ticket) in tickets.into_iter().enumerate().rev() {
        value.clear();
        client.finish(ticket, &mut value).unwrap();
        assert_eq!(value, [key as u8; 700]);
    }
    let refused = client.call(opcode::GET, b"nonsense", &mut value);
    assert!(matches!(refused, Err(CallFailure::Status(CallStatus::BAD_PARAMS))));
    b.device.undeploy(opcode::GET).unwrap();
    let gone = remote.get(&mut client, 1, &mut value);
    assert!(matches!(gone, Err(CallFailure::Status(CallStatus::NO_KERNEL))));
}

/// A kernel for streams that owns a region.
struct Owner(#[allow(dead_code, reason = "it is only dropped")] MemoryRegion);

impl Tap for Owner {}

/// The last that has a region ends it, for which it needs the card.
#[test]
fn a_kernel_may_own_a_region() {
    let end = end();
    let device = &end.device;
    let program = || {
        let region = end.pd.alloc(4096, Access::all()).unwrap();
        let make = move |_: Context| {
            let region = region.clone();
            async move {
                drop(region);
                Ok(())
            }
        };
        Box::new(AsyncProgram::new(make))
    };
    let named = |name: &str| Deployment::new(name, []);
    device.deploy_program(9, named("one"), program()).unwrap();
    let again = device.deploy_program(9, named("again"), program());
    assert_eq!(again, Err(DeployError::Taken(9)));
    let unknown = device.replace_kernel(8, named("unknown"), program());
    assert_eq!(unknown, Err(DeployError::Unknown(8)));
    device.replace_kernel(9, named("two"), program()).unwrap();
    device.undeploy(9).unwrap();

    let owner = || Box::new(Owner(end.pd.alloc(4096, Access::all()).unwrap()));
    let to = Bound::Region(end.memory.key());
    let binding = device.bind_kernel(to, Vec::new(), owner()).unwrap();
    assert!(device.bind_kernel(to, Vec::new(), owner()).is_err(), "it has one");
    binding.replace(Vec::new(), owner());
    drop(binding);
}

#[test]
fn however_many_calls_are_in_flight_each_has_a_receive_element() {
    let (a, b, mut client) = pair();
    let echo = |context: Context| async move {
        let bytes = context.params(|params| Ok(params.to_vec())).await?;
        context.output(|out| out.extend_from_slice(&bytes)).await
    };
    b.device.deploy(7, Deployment::new("echo", Vec::new()), echo).unwrap();
    let (mut answer, mut calls) = (Vec::new(), 0u64);
    for in_flight in [1, 8, 3, 5, 8, 2, 1, 1, 7] {
        // Short parameters travel in the send element, long ones in memory.
        let params: Vec<Vec<u8>> = (0..in_flight)
            .map(|i| [i as u8, in_flight as u8].repeat([1, 40, 400][i % 3]))
            .collect();
        let begin = |params: &Vec<u8>| client.begin(7, params).unwrap();
        let mut tickets: Vec<_> = params.iter().map(begin).zip(&params).collect();
        tickets.rotate_left(in_flight / 2);
        for (ticket, params) in tickets {
            answer.clear();
            client.finish(ticket, &mut answer).unwrap();
            assert_eq!(&answer, params);
        }
        calls += in_flight as u64;
        // No more receive elements than places, and never one too few.
        let elements = u64::from(a.qp.query().receives);
        assert!(elements <= 8, "{elements} after {calls} calls");
        assert_eq!(a.device.counters().card.tx_rnr_naks, 0);
    }
    assert_eq!(b.device.counters().card.kernel_done, calls);
}

#[test]
fn lists_are_traversed_and_objects_checked() {
    let (_a, b, mut client) = pair();
    b.device.deploy_builtin(&[b.memory.grant_read()]).unwrap();
    let base = b.memory.remote(0).addr;
    for i in 0..32u64 {
        let element = [i, base + (i + 1) * 64, base + 8192 + i * 64];
        let bytes: Vec<u8> = element.iter().flat_map(|w| w.to_le_bytes()).collect();
        b.memory.write_at(i as usize * 64, &bytes).unwrap();
        b.memory.write_at(8192 + i as usize * 64, &[i as u8; 64]).unwrap();
    }
    let mut value = Vec::new();
    assert!(
        builtin::traverse(&mut client, &traversal::Params::list(base, 31, 64), &mut value).unwrap()
    );
    assert_eq!(value, [31; 64]);
    let data = vec![7; 4088];
    let object = [&data[..], &consistency::checksum(&data).to_le_bytes()].concat();
    b.memory.write_at(1 << 20, &object).unwrap();
    let address = b.memory.remote(1 << 20).addr;
    let params = consistency::Params { address, len: 4096, readings: 3 };
    value.clear();
    builtin::read_consistent(&mut client, &params, &mut value).unwrap();
    assert_eq!(value, object);
    b.memory.write_at((1 << 20) + 9, &[8]).unwrap();
    let torn = builtin::read_consistent(&mut client, &params, &mut value);
    assert!(matches!(torn, Err(CallFailure::Status(CallStatus::INCONSISTENT))));
}

#[test]
fn streams_are_worked_on_as_they_arrive() {
    let (a, b, mut client) = pair();
    b.device.deploy_builtin(&[b.memory.grant_write()]).unwrap();
    let (numbers, bytes) = numbers(100_000);
    a.memory.write_at(0, &bytes).unwrap();
    let stream = a.memory.sge(0, bytes.len() as u32);
    // HyperLogLog, by RPC WRITE, stored as well.
    let store = b.memory.addr();
    let add = hyperloglog::Params { ask: hyperloglog::Ask::Add, precision: 0, store };
    let (report, _) = builtin::hyperloglog_ask(&mut client, &add, Some(stream)).unwrap();
    assert_eq!(report.count, 100_000);
    assert!((report.estimate / 100_000.0 - 1.0).abs() < 0.04, "{report:?}");
    let mut stored = vec![0; bytes.len()];
    b.memory.read_at(0, &mut stored).unwrap();
    assert!(stored == bytes);
    // Filter: the result is longer than a chunk.
    let (params, wanted) = (is_lower(), lower(&numbers));
    let mut got = Vec::new();
    builtin::filter_rows(&mut client, &params, stream, &mut got).unwrap();
    assert!(got == wanted, "{} of {} bytes", got.len(), wanted.len());
    let params =
        aggregate::Params { row_len: 8, value: Column::u64(0), group_by: None, groups_max: 0 };
    let groups = builtin::aggregate_rows(&mut client, &params, stream).unwrap();
    assert_eq!(groups[0].sum, numbers.iter().map(|v| i128::from(*v)).sum());
}

#[test]
fn values_are_partitioned_as_they_arrive() {
    let (a, b, mut client) = pair();
    let shared = b.device.deploy_builtin(&[b.memory.grant_write()]).unwrap();
    let (numbers, bytes) = numbers(100_000);
    a.memory.write_at(0, &bytes).unwrap();
    let stream = a.memory.sge(0, bytes.len() as u32);
    let mut sizes = vec![0; 256];
    numbers.iter().for_each(|v| sizes[(v & 255) as usize] += 1);
    let mut expected = Vec::new();
    for partition in 0..256 {
        expected.extend(numbers.iter().filter(|v| *v & 255 == partition));
    }
    let begin = |client: &mut _, at: usize| {
        let histogram = shuffle::Partition::histogram(b.memory.addr() + at as u64, &sizes);
        a.memory.write_at(2 << 20, &histogram).unwrap();
        let histogram = a.memory.sge(2 << 20, histogram.len() as u32);
        builtin::shuffle_histogram(client, 1, 8, histogram).unwrap();
    };
    let partitioned = |at: usize| {
        let mut got = vec![0; bytes.len()];
        b.memory.read_at(at, &mut got).unwrap();
        b.memory.write_at(at, &vec![0; bytes.len()]).unwrap();
        let got: Vec<u64> = got.as_chunks().0.iter().map(|v| u64::from_le_bytes(*v)).collect();
        got == expected
    };
    // (The last partition begins in the middle of a word, where no value can be stored whole.)
    for at in [0, 8, 3] {
        begin(&mut client, at);
        assert_eq!(builtin::shuffle_values(&mut client, 1, stream).unwrap(), 100_000);
        assert!(partitioned(at), "partitions at {at}");
    }
    // A receive kernel sees plain WRITEs.
    begin(&mut client, 0);
    let to = Bound::Region(b.memory.key());
    let tap = shared.shuffle.tap(1);
    let binding = b.device.bind_kernel(to, vec![b.memory.grant_write()], tap).unwrap();
    let op = SendOp::Write { to: b.memory.remote(1 << 20), imm: None };
    let flags = SendFlags::SIGNALED;
    a.qp.post_send(&SendRequest { wr_id: 1, op, data: Data::Sges(&[stream]), flags }).unwrap();
    assert_eq!(a.send_cq.spin(PATIENCE).unwrap().status, Status::Success);
    assert!(partitioned(0));
    drop(binding);
}

#[test]
fn a_receive_kernel_sees_writes_while_it_is_bound() {
    let (a, b, _client) = pair();
    let shared = b.device.deploy_builtin(&[b.memory.grant_write()]).unwrap();
    let (_, bytes) = numbers(100_000);
    a.memory.write_at(0, &bytes).unwrap();
    let stream = a.memory.sge(0, bytes.len() as u32);
    let (to, flags) = (Bound::Region(b.memory.key()), SendFlags::SIGNALED);
    shared.hyperloglog.with(|sketch| *sketch = hyperloglog::Sketch::new(14));
    let binding = b.device.bind_kernel(to, vec![], shared.hyperloglog.tap()).unwrap();
    let op = SendOp::Write { to: b.memory.remote(0), imm: None };
    let write = || {
        a.qp.post_send(&SendRequest { wr_id: 1, op, data: Data::Sges(&[stream]), flags }).unwrap();
        assert_eq!(a.send_cq.spin(PATIENCE).unwrap().status, Status::Success);
        shared.hyperloglog.with(|sketch| sketch.count())
    };
    assert_eq!(write(), 100_000);
    drop(binding);
    assert_eq!(write(), 100_000, "the second WRITE passed unseen");
}

/// A kernel for streams that panics.
struct Panics;

impl Tap for Panics {
    fn receiving(
        &mut self,
        _: &mut TapIo<'_, '_>,
        _: &Passing,
        bytes: &[u8],
        _: &mut Vec<u8>,
    ) -> Verdict {
        panic!("at {} bytes", bytes.len());
    }
}

/// The card's thread would end with it, and everything on the device stand still.
#[test]
fn a_kernel_that_panics_ends_its_invocation_only() {
    let (a, b, mut client) = pair();
    let first = |context: Context| async move {
        let first = context.params(|params| Ok(params[0])).await?;
        context.output(|out| out.push(first)).await
    };
    b.device.deploy(7, Deployment::new("first", []), first).unwrap();
    let never = |context: Context| {
        assert_eq!(context.opcode(), 7, "when it starts");
        async { Ok(()) }
    };
    b.device.deploy(8, Deployment::new("never", []), never).unwrap();
    let (mut out, mut traps) = (Vec::new(), 0);
    for opcode in [7, 8, 7] {
        let trap = client.call(opcode, &[], &mut out);
        assert!(matches!(trap, Err(CallFailure::Status(CallStatus::TRAP))), "{trap:?}");
        traps += 1;
        out.clear();
        client.call(7, &[5], &mut out).unwrap();
        assert_eq!(out, [5]);
        assert_eq!(b.device.counters().card.kernel_trap, traps);
    }
    assert!(b.device.kernels().iter().all(|kernel| kernel.running == 0));
    let to = Bound::Region(b.memory.key());
    let binding = b.device.bind_kernel(to, vec![], Box::new(Panics)).unwrap();
    a.memory.write_at(0, b"passes").unwrap();
    let op = SendOp::Write { to: b.memory.remote(0), imm: None };
    let (data, flags) = (Data::Sges(&[a.memory.sge(0, 6)]), SendFlags::SIGNALED);
    for _ in 0..2 {
        a.qp.post_send(&SendRequest { wr_id: 1, op, data, flags }).unwrap();
        assert_eq!(a.send_cq.spin(PATIENCE).unwrap().status, Status::Success);
    }
    let mut written = [0; 6];
    b.memory.read_at(0, &mut written).unwrap();
    assert_eq!(&written, b"passes");
    assert_eq!((binding.info().payloads, binding.info().stopped), (1, Some(CallStatus::TRAP)));
}

#[test]
fn the_hosts_fallback_answers() {
    let (_a, b, mut client) = pair();
    let fallback = b.device.serve_fallback();
    let server = std::thread::spawn(move || {
        let call = fallback.next(PATIENCE).unwrap();
        assert_eq!((call.opcode, &call.params[..]), (77, &b"question"[..]));
        fallback.answer(&call, CallStatus::OK, b"answer");
        // This call gets no answer, so its caller is refused when the fallback ends.
        let call = fallback.next(PATIENCE).unwrap();
        assert_eq!(call.opcode, 78);
    });
    let mut answer = Vec::new();
    client.call(77, b"question", &mut answer).unwrap();
    assert_eq!(answer, b"answer");
    let left = client.call(78, b"", &mut answer);
    assert!(matches!(left, Err(CallFailure::Status(CallStatus::UNAVAILABLE))));
    server.join().unwrap();
    drop(b);
}

#[test]
fn the_host_calls_its_own_kernels() {
    let (_a, b, _client) = pair();
    b.device
        .deploy(5, Deployment::new("echo", []), |context: Context| async move {
            let params = context.params(|params| Ok(params.to_vec())).await?;
            context.output(|out| out.extend_from_slice(&params)).await
        })
        .unwrap();
    let (to, word) = (b.memory.remote(0), b.memory.remote(64));
    let header = Header {
        notify: Notify::Word(word),
        local: true,
        params_len: 5,
        to,
        max_len: 8,
        cookie: 9,
    };
    let call = [&header.to_bytes()[..], b"local"].concat();
    b.qp.call_kernel(5, &call).unwrap();
    let (mut result, mut word) = ([0; 5], [0; 16]);
    b.memory.read_at(0, &mut result).unwrap();
    b.memory.read_at(64, &mut word).unwrap();
    assert_eq!(&result, b"local");
    let expected = StatusWord { cookie: 9, len: 5, status: CallStatus::OK };
    assert_eq!(StatusWord::parse(&word), Some(expected));
}

/// As StRoM's `postRpc` and `postRpcWrite`: the kernel's WRITEs bring the results.
#[test]
fn calls_are_posted_like_other_requests() {
    let (a, b, _client) = pair();
    let reversed = |context: Context| async move {
        let mut bytes = context.params(|params| Ok(params.to_vec())).await?;
        while context.payload(|piece, _| bytes.extend_from_slice(piece)).await?.is_some() {}
        bytes.reverse();
        context.output(|out| out.extend_from_slice(&bytes)).await
    };
    b.device.deploy(7, Deployment::new("reversed", []), reversed).unwrap();
    let (to, word) = (a.memory.remote(0), a.memory.remote(8192));
    let call = |cookie, text: &[u8]| {
        let (notify, params_len) = (Notify::Word(word), 5);
        let header = Header { notify, local: false, params_len, to, max_len: 8192, cookie };
        [&header.to_bytes()[..], text].concat()
    };
    let ended = |cookie, expected: &[u8]| {
        let answered = || {
            let mut word = [0; 16];
            a.memory.read_at(8192, &mut word).unwrap();
            StatusWord::parse(&word).filter(|word| word.cookie == cookie)
        };
        let len = expected.len() as u32;
        let answer = StatusWord { cookie, len, status: CallStatus::OK };
        assert_eq!(until_some("an answer", answered), answer);
        assert!(a.memory.slice(..expected.len()).to_vec().unwrap() == expected, "call {cookie}");
    };
    let done = |wr_id, opcode| {
        let done = a.send_cq.spin(PATIENCE).unwrap();
        assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
        assert_eq!(done.kind, WorkKind::Send(opcode));
    };
    a.qp.post_rpc(11, 7, Data::Inline(&call(1, b"short")), SendFlags::SIGNALED).unwrap();
    done(11, Opcode::Rpc);
    ended(1, b"trohs");
    // With payload of more than one packet, behind the parameters.
    let text: Vec<u8> = b"after".iter().copied().chain((0..6000).map(|i| i as u8)).collect();
    let call = call(2, &text);
    a.memory.write_at(1 << 20, &call).unwrap();
    let sges = [a.memory.sge(1 << 20, call.len() as u32)];
    a.qp.post_rpc_write(12, 7, Data::Sges(&sges), SendFlags::SIGNALED).unwrap();
    done(12, Opcode::RpcWrite);
    ended(2, &text.into_iter().rev().collect::<Vec<u8>>());
}

/// Nothing of it is posted, so the connection goes on.
#[test]
fn a_call_longer_than_the_path_mtu_is_refused() {
    let (a, b) = (end(), end());
    let params = ConnectionParams::new(Mtu::B512).kernels(true);
    a.qp.connect(b.qp.local(), &params).unwrap();
    b.qp.connect(a.qp.local(), &params).unwrap();
    let mut client = KernelClient::new(&a.pd, &a.qp, &a.recv_cq, 1, 1 << 10).unwrap();
    let echo = |context: Context| async move {
        let bytes = context.params(|params| Ok(params.to_vec())).await?;
        context.output(|out| out.extend_from_slice(&bytes)).await
    };
    b.device.deploy(7, Deployment::new("echo", []), echo).unwrap();
    let (payload, mut out) = (a.memory.sge(0, 5000), Vec::new());
    for len in [473, 5000] {
        let params = vec![3; len];
        for payload in [None, Some(payload)] {
            let called = match payload {
                None => client.call(7, &params, &mut out),
                Some(payload) => client.call_with(7, &params, payload, &mut out),
            };
            let why = called.unwrap_err().to_string();
            assert!(why.contains(&len.to_string()) && why.contains("at most 472"), "{why}");
        }
    }
    let params = [3; 472];
    client.call(7, &params, &mut out).unwrap();
    client.call_with(7, &params, payload, &mut out).unwrap();
    assert_eq!(out, [3; 944]);
}

#[test]
fn the_op_codes_are_agreed_at_connection() {
    for (offers, accepts) in [(true, true), (true, false), (false, true)] {
        let (a, b) = (end(), end());
        let listener = b.device.listen(7000).unwrap();
        let to = std::net::SocketAddr::new(b.device.info().address, 7000);
        let mtu = a.device.info().mtu;
        let accepting = std::thread::spawn(move || {
            let request = listener.accept().wait(PATIENCE).unwrap();
            let params = ConnectionParams::new(mtu).kernels(accepts);
            let connection = request.accept(b.qp.clone(), b"yes", &params).wait(PATIENCE).unwrap();
            (b, connection)
        });
        let params = ConnectionParams::new(mtu).kernels(offers);
        let connection =
            a.device.connect(a.qp.clone(), to, b"hello", &params).wait(PATIENCE).unwrap();
        let (_b, accepted) = accepting.join().unwrap();
        assert!(connection.private_data().starts_with(b"yes\0"));
        assert!(accepted.private_data().starts_with(b"hello\0"));
        assert!(!connection.private_data().ends_with(b"StRM"));
        let mut client = KernelClient::new(&a.pd, &a.qp, &a.recv_cq, 1, 64).unwrap();
        client.timeout = Duration::from_secs(5);
        let called = client.call(1, b"", &mut Vec::new());
        // Where both sides agreed, the answer is that there is no such kernel; else no packet
        // leaves.
        match (offers && accepts, called) {
            (true, Err(CallFailure::Status(CallStatus::NO_KERNEL))) => {}
            (false, Err(CallFailure::Connection(Status::Flushed))) => {}
            (_, called) => panic!("{offers} {accepts}: {called:?}"),
        }
    }
}
