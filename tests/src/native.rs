//! An end that uses the crate `remora`, in this process.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use remora::daemon::{Server, ServerOptions};
use remora::event::Event;
use remora::nic::qp::{Mtu, QpAttr, State};
use remora::nic::queue::{
    CompletionFlags, Data, RecvRequest, RemoteAddress, SendFlags, SendOp, SendRequest,
    Status as Ended, UdDestination,
};
use remora::nic::wire::Transport;
use remora::nic::{Access, Path, Psn};
use remora::{
    AddressHandle, CompletionQueue, ConnectFailure, Connection, ConnectionEnd, ConnectionParams,
    Device, DeviceOptions, Listener, MemoryRegion, Peer, ProtectionDomain, QueuePair,
    QueuePairOptions, WaitError,
};

use crate::end::{At, Done, End, Met, PATIENCE, Pair, QKEY, REGION, Service, Status, Terms, Work};

/// A device of this process.
#[derive(Debug)]
pub struct Native {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    region: MemoryRegion,
    pairs: Vec<Option<QueuePair>>,
    connections: HashMap<usize, Connection>,
    handles: HashMap<IpAddr, AddressHandle>,
    listener: Option<Arc<Listener>>,
    begun: Option<Begun>,
    /// Whose card the device's is, if it is not this process's own. It ends after the device.
    _daemon: Option<Daemon>,
}

/// A daemon in a thread of this process.
#[derive(Debug)]
struct Daemon {
    /// Where it listens, alone in a folder.
    socket: PathBuf,
    stop: Arc<Event>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Daemon {
    /// Shares the card of `device`.
    fn start(device: Device) -> Daemon {
        let folder = std::env::temp_dir().join(format!("remora-rxe-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder for the daemon");
        let socket = folder.join("nic.sock");
        let options = ServerOptions { socket: Some(socket.clone()), ..ServerOptions::default() };
        let mut server = Server::new(device, options).expect("a daemon");
        let stop = Arc::new(Event::new().expect("an event"));
        let told = Arc::clone(&stop);
        let thread = Some(std::thread::spawn(move || server.run(&told)));
        Daemon { socket, stop, thread }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.notify().expect("an event");
        let ended = self.thread.take().map(JoinHandle::join);
        let is_well = ended.is_none_or(|ended| matches!(ended, Ok(Ok(()))));
        assert!(is_well || std::thread::panicking(), "the daemon has failed");
        let folder = self.socket.parent().expect("a folder of its own");
        std::fs::remove_dir_all(folder).expect("nobody else removes it");
    }
}

/// A call that was started and not finished, and the queue pair that it is about.
#[derive(Debug)]
struct Begun {
    index: usize,
    thread: JoinHandle<Result<(Option<Connection>, String), ConnectFailure>>,
}

impl Native {
    /// Opens a device at `address`.
    pub fn open(address: IpAddr) -> Native {
        Native::of(card(address), None)
    }

    /// Attaches to a daemon that has the card at `address`.
    pub fn attach(address: IpAddr) -> Native {
        let daemon = Daemon::start(card(address));
        let device = DeviceOptions::new().attach(&daemon.socket).open();
        Native::of(device.expect("a session"), Some(daemon))
    }

    fn of(device: Device, daemon: Option<Daemon>) -> Native {
        let pd = device.alloc_pd().expect("a protection domain");
        let cq = device.create_cq(4096).expect("a completion queue");
        let region = pd.alloc(REGION, Access::all()).expect("a region");
        Native {
            device,
            pd,
            cq,
            region,
            pairs: Vec::new(),
            connections: HashMap::new(),
            handles: HashMap::new(),
            listener: None,
            begun: None,
            _daemon: daemon,
        }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn qp(&self, pair: &Pair) -> &QueuePair {
        self.pairs[pair.index].as_ref().expect("a queue pair that is there")
    }

    fn add(&mut self, service: Service) -> Pair {
        let transport = match service {
            Service::Rc => Transport::Rc,
            Service::Uc => Transport::Uc,
            Service::Ud => Transport::Ud,
        };
        let options = QueuePairOptions::rc(&self.cq).transport(transport);
        let qp = self.pd.create_qp(&options).expect("a queue pair");
        let Peer { address, qpn, psn } = qp.local();
        self.pairs.push(Some(qp));
        Pair { index: self.pairs.len() - 1, address, qpn, psn: psn.value() }
    }

    fn params(&self) -> ConnectionParams {
        ConnectionParams::new(self.device.info().mtu).max_rd_atomic(4).timeout(16)
    }
}

/// A card of this process at `address`.
fn card(address: IpAddr) -> Device {
    let device = DeviceOptions::new().embedded().bind(address.to_string()).open();
    device.unwrap_or_else(|error| panic!("a device at {address}: {error}"))
}

fn remote(at: At) -> RemoteAddress {
    RemoteAddress { addr: at.addr, rkey: at.rkey }
}

fn status(ended: Ended) -> Status {
    match ended {
        Ended::Success => Status::Success,
        Ended::LocalLength => Status::LocalLength,
        Ended::Flushed => Status::Flushed,
        Ended::RemoteInvalidRequest => Status::RemoteInvalidRequest,
        Ended::RemoteAccess => Status::RemoteAccess,
        Ended::RemoteOperation => Status::RemoteOperation,
        Ended::RetryExceeded => Status::RetryExceeded,
        Ended::RnrRetryExceeded => Status::RnrRetryExceeded,
        other => Status::Other(other as u32),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

impl End for Native {
    fn name(&self) -> &str {
        "remora"
    }

    fn address(&self) -> IpAddr {
        self.device.info().address
    }

    fn at(&self, offset: u64) -> At {
        let RemoteAddress { addr, rkey } = self.region.remote(offset);
        At { addr, rkey }
    }

    fn fill(&mut self, offset: u64, len: u64, seed: u8) {
        let bytes: Vec<u8> = (0..len).map(|i| crate::end::pattern(i, seed)).collect();
        self.region.write_at(offset as usize, &bytes).expect("inside of the region");
    }

    fn sum(&mut self, offset: u64, len: u64) -> u64 {
        let mut bytes = vec![0; len as usize];
        self.region.read_at(offset as usize, &mut bytes).expect("inside of the region");
        crate::end::sum(bytes)
    }

    fn set(&mut self, offset: u64, value: u64) {
        self.region.write_at(offset as usize, &value.to_ne_bytes()).expect("inside of the region");
    }

    fn get(&mut self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.region.read_at(offset as usize, &mut bytes).expect("inside of the region");
        u64::from_ne_bytes(bytes)
    }

    fn pair(&mut self, service: Service) -> Pair {
        let pair = self.add(service);
        if service != Service::Ud {
            self.qp(&pair).to_init(Access::all()).expect("to INIT");
        } else {
            // In INIT, it takes receive requests.
            let state = Some(State::Init);
            let attr = QpAttr { state, qkey: Some(QKEY), ..QpAttr::default() };
            self.qp(&pair).modify(&attr).expect("to INIT");
        }
        pair
    }

    fn connect(&mut self, pair: &Pair, peer: &Pair, terms: &Terms) {
        let mtu = Mtu::from_code((terms.mtu.ilog2() - 7) as u8).expect("an MTU of RoCE");
        let params = ConnectionParams::new(mtu)
            .access(Access::all())
            .max_rd_atomic(terms.rd_atomic)
            .timeout(terms.timeout)
            .retry_cnt(terms.retry)
            .rnr_retry(terms.rnr_retry)
            .min_rnr_timer(terms.min_rnr);
        let to = Peer { address: peer.address, qpn: peer.qpn, psn: Psn::new(peer.psn) };
        let qp = self.qp(pair);
        if qp.to_rtr(to, &params).is_ok() {
            return qp.to_rts(&params).expect("to RTS");
        }
        // Unreliable transitions take fewer attributes.
        let state = |state| QpAttr { state: Some(state), ..QpAttr::default() };
        let rtr = QpAttr {
            path: Some(Path::new(peer.address, pair.qpn)),
            path_mtu: Some(mtu),
            dest_qp: Some(peer.qpn),
            rq_psn: Some(to.psn),
            ..state(State::Rtr)
        };
        qp.modify(&rtr).expect("to RTR");
        let sq_psn = Some(Psn::new(pair.psn));
        qp.modify(&QpAttr { sq_psn, ..state(State::Rts) }).expect("to RTS");
    }

    fn ready(&mut self, pair: &Pair) {
        let path_mtu = Some(self.device.info().mtu);
        let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
        let qp = self.qp(pair);
        qp.modify(&QpAttr { path_mtu, ..to(State::Rtr) }).expect("to RTR");
        let sq_psn = Some(Psn::new(pair.psn));
        qp.modify(&QpAttr { sq_psn, ..to(State::Rts) }).expect("to RTS");
    }

    fn break_off(&mut self, pair: &Pair) {
        let attr = QpAttr { state: Some(State::Error), ..QpAttr::default() };
        self.qp(pair).modify(&attr).expect("to ERROR");
    }

    fn destroy(&mut self, pair: &Pair) {
        self.connections.remove(&pair.index);
        self.pairs[pair.index] = None;
    }

    fn recv(&mut self, pair: &Pair, wr_id: u64, offset: u64, len: u64) {
        let sges = [self.region.sge(offset, len as u32)];
        let request = RecvRequest { wr_id, sges: &sges };
        self.qp(pair).post_recv(&request).expect("a receive request is taken");
    }

    fn post(&mut self, pair: &Pair, wr_id: u64, work: Work, offset: u64, len: u64) {
        let op = match work {
            Work::Send(imm) => SendOp::Send { imm, to: None },
            Work::Datagram(to, qkey, imm) => {
                let pd = &self.pd;
                let make = || pd.create_ah(to.address).expect("an address handle");
                let ah = self.handles.entry(to.address).or_insert_with(make).handle();
                SendOp::Send { imm, to: Some(UdDestination { ah, qpn: to.qpn, qkey }) }
            }
            Work::Write(at, imm) => SendOp::Write { to: remote(at), imm },
            Work::Read(at) => SendOp::Read { from: remote(at) },
            Work::CompareSwap(at, compare, swap) => {
                SendOp::CompareSwap { at: remote(at), compare, swap }
            }
            Work::FetchAdd(at, add) => SendOp::FetchAdd { at: remote(at), add },
        };
        let sges = [self.region.sge(offset, len as u32)];
        let data = Data::Sges(if len == 0 { &[] } else { &sges });
        let request = SendRequest { wr_id, op, data, flags: SendFlags::SIGNALED };
        self.qp(pair).post_send(&request).expect("a send request is taken");
    }

    fn poll(&mut self, patience: Duration) -> Option<Done> {
        let done = match self.cq.spin(patience) {
            Ok(done) => done,
            Err(WaitError::Timeout(_)) => return None,
            Err(error) => panic!("remora: poll: {error}"),
        };
        Some(Done {
            wr_id: done.wr_id,
            status: status(done.status),
            len: done.len,
            imm: done.flags.contains(CompletionFlags::IMM).then_some(done.imm_or_key),
            src_qp: done.src_qp,
            grh: done.flags.contains(CompletionFlags::GRH),
        })
    }

    fn listen(&mut self, port: u16) {
        self.listener = Some(Arc::new(self.device.listen(port).expect("a free port")));
    }

    fn unlisten(&mut self) {
        self.listener = None;
    }

    fn begin_connect(&mut self, to: IpAddr, port: u16, words: &str) {
        let pair = self.add(Service::Rc);
        let (device, qp, params) = (self.device.clone(), self.qp(&pair).clone(), self.params());
        let words = words.to_owned();
        let thread = std::thread::spawn(move || {
            let to = SocketAddr::new(to, port);
            let made = device.connect(qp, to, words.as_bytes(), &params).wait(PATIENCE)?;
            let said = text(made.private_data());
            Ok((Some(made), said))
        });
        self.begun = Some(Begun { index: pair.index, thread });
    }

    fn begin_accept(&mut self, words: &str) {
        let pair = self.add(Service::Rc);
        let (qp, params) = (self.qp(&pair).clone(), self.params());
        let (listener, words) = (self.listener.clone().expect("a listener"), words.to_owned());
        let thread = std::thread::spawn(move || {
            let request = listener.accept().wait(PATIENCE)?;
            let said = text(request.private_data());
            let made = request.accept(qp, words.as_bytes(), &params).wait(PATIENCE)?;
            Ok((Some(made), said))
        });
        self.begun = Some(Begun { index: pair.index, thread });
    }

    fn begin_refuse(&mut self, words: &str) {
        let (listener, words) = (self.listener.clone().expect("a listener"), words.to_owned());
        let thread = std::thread::spawn(move || {
            let request = listener.accept().wait(PATIENCE)?;
            let said = text(request.private_data());
            request.reject(&words);
            Ok((None, said))
        });
        self.begun = Some(Begun { index: usize::MAX, thread });
    }

    fn finish(&mut self) -> Met {
        let Begun { index, thread } = self.begun.take().expect("something begun");
        match thread.join().expect("a thread that does not panic") {
            Ok((Some(connection), said)) => {
                let Peer { address, qpn, psn } = connection.queue_pair().local();
                self.connections.insert(index, connection);
                Met::Connected(Pair { index, address, qpn, psn: psn.value() }, said)
            }
            Ok((None, said)) => Met::Refused(said),
            Err(ConnectFailure::Rejected { message, .. }) => Met::Refused(message),
            Err(failure) => Met::Failed(failure.to_string()),
        }
    }

    fn disconnect(&mut self, pair: &Pair) {
        self.connections.remove(&pair.index);
    }

    fn ended(&mut self, pair: &Pair, patience: Duration) -> bool {
        let connection = &self.connections[&pair.index];
        connection.wait_for_end(patience) == ConnectionEnd::Disconnected
    }
}
