//! Kernels of programs that share a daemon's card: each has its own, and what they may use is
//! theirs.

mod daemon;
mod support;

use daemon::Daemon;
use daemon::until::until;
use remora::ConnectionParams;
use remora::kernel::builtin::{Builtin, Kind, RemoteTable};
use remora::kernel::{
    BegunCall, Bound, CallFailure, CallStatus, DeployError, Deployment, KernelClient,
};
use remora::nic::nic::BindError;
use remora::nic::queue::{Data, SendFlags, SendOp, SendRequest, Status};
use remora::offload::kernel::builtin::{consistency, get, opcode};
use support::{End, PATIENCE, connect, end, end_on};

/// A table of one value, which a `get` finds by key 7.
fn serve_table(end: &End, value: &[u8]) -> RemoteTable {
    let mut table = get::Table::new(16, 48);
    let at = end.memory.remote(1 << 16).addr;
    table.insert(7, get::Value { addr: at, len: value.len() as u32 }).unwrap();
    end.memory.write_at(1 << 16, value).unwrap();
    end.memory.write_at(0, table.bytes()).unwrap();
    let deployment = Deployment::new("get", [end.memory.grant_read()]);
    end.device.deploy_kind(opcode::GET, deployment, Kind::Get, &Builtin::new()).unwrap();
    RemoteTable { table: end.memory.remote(0).addr, heads: 16 }
}

fn get(client: &mut KernelClient, table: &RemoteTable) -> Result<Vec<u8>, CallFailure> {
    let mut value = Vec::new();
    table.get(client, 7, &mut value).map(|_| value)
}

#[test]
fn each_program_has_its_own_kernels() {
    let daemon = Daemon::start();
    let (one, two) = (end_on(daemon.attach()), end_on(daemon.attach()));
    let (a, b) = (end(), end_on(daemon.attach()));
    let (mut of_one, mut of_two) = (connect(&a, &one), connect(&b, &two));
    let first = serve_table(&one, b"the first program's");
    assert!(matches!(get(&mut of_two, &first), Err(CallFailure::Status(CallStatus::NO_KERNEL))));
    let second = serve_table(&two, b"the second program's");
    assert_eq!(get(&mut of_one, &first).unwrap(), b"the first program's");
    assert_eq!(get(&mut of_two, &second).unwrap(), b"the second program's");
    // By the other one's connection, addresses of the first mean nothing.
    assert!(get(&mut of_two, &first).is_err());

    let again = Deployment::new("get", []);
    let taken = one.device.deploy_kind(opcode::GET, again, Kind::Get, &Builtin::new());
    assert_eq!(taken, Err(DeployError::Taken(opcode::GET)));
    let listed = one.device.kernels();
    assert_eq!((listed.len(), listed[0].calls, listed[0].name.as_str()), (1, 1, "get"));
    assert_eq!(two.device.undeploy(9), Err(DeployError::Unknown(9)));
    two.device.undeploy(opcode::GET).unwrap();
    assert!(two.device.kernels().is_empty());
    assert!(get(&mut of_two, &second).is_err());
    assert_eq!(get(&mut of_one, &first).unwrap(), b"the first program's");
}

#[test]
fn kernels_end_with_their_program() {
    let daemon = Daemon::start();
    for _ in 0..3 {
        // A session of the same place, and the op-code is free again.
        let server = end_on(daemon.attach());
        let a = end();
        let mut client = connect(&a, &server);
        let table = serve_table(&server, b"value");
        assert_eq!(get(&mut client, &table).unwrap(), b"value");
        assert_eq!(server.device.kernels().len(), 1);
    }
}

#[test]
fn code_of_this_process_cannot_be_sent() {
    let daemon = Daemon::start();
    let server = end_on(daemon.attach());
    let program = Builtin::new().program(Kind::Get);
    let refused = server.device.deploy_program(1, Deployment::new("get", []), program);
    assert_eq!(refused, Err(DeployError::Elsewhere));
    let program = Builtin::new().program(Kind::Get);
    let refused = server.device.replace_kernel(1, Deployment::new("get", []), program);
    assert_eq!(refused, Err(DeployError::Elsewhere));
    let tap = Builtin::new().tap(Kind::HyperLogLog).unwrap();
    let refused = server.device.bind_kernel(Bound::Receive(server.qp.qpn()), vec![], tap);
    assert_eq!(refused.err(), Some(BindError::Elsewhere));
}

/// A kernel that reads an object again and again, which is never consistent, and so many calls of
/// it.
fn occupy(server: &End, calls: usize) -> (End, KernelClient, Vec<BegunCall>) {
    let deployment = Deployment::new("endless", [server.memory.grant_read()]).budget(u64::MAX);
    let kind = Kind::Consistency;
    server.device.deploy_kind(opcode::CONSISTENCY, deployment, kind, &Builtin::new()).unwrap();
    let a = end();
    let params = ConnectionParams::new(a.device.info().mtu).kernels(true);
    a.qp.connect(server.qp.local(), &params).unwrap();
    server.qp.connect(a.qp.local(), &params).unwrap();
    let mut client = KernelClient::new(&a.pd, &a.qp, &a.recv_cq, calls, 64).unwrap();
    let address = server.memory.remote(0).addr;
    let object = consistency::Params { address, len: 9, readings: u32::MAX };
    let begin = |_| client.begin(opcode::CONSISTENCY, &object.to_bytes()).unwrap();
    let begun = (0..calls).map(begin).collect();
    (a, client, begun)
}

/// However many invocations some sessions have that do not end, those of another one begin.
#[test]
fn a_session_has_invocations_whatever_others_have() {
    let daemon = Daemon::start();
    let servers = [(); 4].map(|()| end_on(daemon.attach()));
    let occupied: Vec<_> = servers.iter().map(|server| occupy(server, 64)).collect();
    let info = &servers[0].device.kernels()[0];
    assert_eq!((info.name.as_str(), info.budget), ("endless", 1 << 26), "the policy's most");
    until("almost half of all are taken", || {
        let of_each = servers.iter().map(|server| server.device.kernels()[0].running);
        let running: u32 = of_each.sum();
        assert!(running <= 128, "{running}");
        running > 100
    });
    let (a, fifth) = (end(), end_on(daemon.attach()));
    let mut client = connect(&a, &fifth);
    let table = serve_table(&fifth, b"value");
    assert_eq!(get(&mut client, &table).unwrap(), b"value");
    drop(occupied);
}

fn write(a: &End, b: &End, bytes: &[u8]) {
    a.memory.write_at(0, bytes).unwrap();
    let op = SendOp::Write { to: b.memory.remote(0), imm: None };
    let sges = [a.memory.sge(0, bytes.len() as u32)];
    let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
    a.qp.post_send(&SendRequest { wr_id: 1, op, data, flags }).unwrap();
    assert_eq!(a.send_cq.spin(PATIENCE).unwrap().status, Status::Success);
}

#[test]
fn streams_pass_through_built_in_kernels() {
    let daemon = Daemon::start();
    let (a, b, other) = (end(), end_on(daemon.attach()), end_on(daemon.attach()));
    connect(&a, &b);
    let to = Bound::Region(b.memory.key());
    let bind = |end: &End| end.device.bind_builtin(to, vec![], Kind::HyperLogLog, &Builtin::new());
    assert_eq!(bind(&other).err(), Some(BindError::Unknown), "another program's region");
    let binding = bind(&b).unwrap();
    assert_eq!(bind(&b).err(), Some(BindError::Taken));
    write(&a, &b, &[7; 64]);
    write(&a, &b, &[8; 64]);
    assert_eq!((binding.info().payloads, binding.info().stopped), (2, None));
    drop(binding);
    let binding = bind(&b).unwrap();
    write(&a, &b, &[9; 64]);
    assert_eq!(binding.info().payloads, 1);
    let none = b.device.bind_builtin(to, vec![], Kind::Get, &Builtin::new());
    let words = none.err().unwrap().to_string();
    assert!(words.contains("get cannot be bound"), "{words}");
}
