//! A client's connection to a store: a queue pair for calls of kernels and READs, and one to a
//! chain. The store's own client code asks through a [`Mailbox`]; the host looks after it when it
//! looks after its queues.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use remora::kernel::CallFailure;
use remora::{Remote as StoreAt, nic::queue::Status as LiveStatus};
use remora_nic::kernel::{CallStatus, Header, Notify, STATUS_WORD_LEN, StatusWord};
use remora_nic::queue::{
    Data, RecvRequest, RemoteAddress, SendFlags, SendOp, SendRequest, Sge, Status, WorkKind,
};
use remora_nic::wire::{Dialect, Transport};
use remora_nic::{Access, Pd, Psn};
use remora_offload::chain::link::RegionAt;
use remora_store::client::carried::{Carrier, Piece};
use remora_store::memory::{Heap, Memory};
use remora_store::way::chain::ChainError;
use remora_store::way::one_sided::OneSidedError;

use super::CHECKER;
use crate::chain::{self, SimChain};
use crate::check::Violation;
use crate::endpoint::{ConnectOptions, Endpoint, QueueOptions, connect};
use crate::objects::Object;
use crate::world::World;

/// Where things lie in the client's region: a call, its results and its status word, what READs
/// bring, what a chain answers.
const CALL: u64 = 0;
const RESULT: u64 = 8 << 10;
const WORD: u64 = 24 << 10;
const LANDING: u64 = 32 << 10;
const ANSWER: u64 = 48 << 10;
const END: u64 = 64 << 10;
/// The most bytes of a call that travel as its parameters, as live.
const PARAMS_MAX: usize = 200;

/// The id of READs.
const READ: u64 = 1;

/// What the client's code wants to have done.
#[derive(Debug)]
enum Wish {
    Call(u64, Vec<u8>),
    Read(Vec<Piece>),
    Ask(Vec<u8>),
}

/// What came of it.
#[derive(Debug)]
enum Outcome {
    Called(CallStatus, Vec<u8>),
    /// The bytes of each piece, with its place in the landing memory.
    Read(Vec<(u64, Vec<u8>)>),
    Asked(Vec<u8>),
}

/// Between the client's code, which is a future, and the world, which carries out its wishes.
#[derive(Clone, Debug, Default)]
pub(super) struct Mailbox(Rc<RefCell<(Option<Wish>, Option<Outcome>)>>);

impl Mailbox {
    async fn exchange(&self, wish: Wish) -> Outcome {
        self.0.borrow_mut().0 = Some(wish);
        poll_fn(|_| self.0.borrow_mut().1.take().map_or(Poll::Pending, Poll::Ready)).await
    }
}

impl Carrier for Mailbox {
    async fn call(
        &self,
        opcode: u64,
        bytes: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        match self.exchange(Wish::Call(opcode, bytes.to_vec())).await {
            Outcome::Called(CallStatus::OK, bytes) => {
                answer.extend_from_slice(&bytes);
                Ok(())
            }
            Outcome::Called(status, _) => Err(CallFailure::Status(status)),
            _ => Err(CallFailure::Answer),
        }
    }

    async fn read(&self, pieces: &[Piece], landing: &Heap) -> Result<(), OneSidedError> {
        let Outcome::Read(read) = self.exchange(Wish::Read(pieces.to_vec())).await else {
            return Err(OneSidedError::Read(LiveStatus::Flushed));
        };
        read.iter().for_each(|(to, bytes)| landing.write(*to, bytes));
        Ok(())
    }

    async fn ask(&self, message: &[u8], answer: &mut Vec<u8>) -> Result<(), ChainError> {
        let Outcome::Asked(bytes) = self.exchange(Wish::Ask(message.to_vec())).await else {
            return Err(ChainError::Connection(LiveStatus::Flushed));
        };
        *answer = bytes;
        Ok(())
    }
}

/// What a store opens to its clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doors {
    pub(super) host: usize,
    /// The domain of queue pairs for calls and READs, and the store's memory in it.
    pub(super) pd: Pd,
    pub(super) memory: StoreAt,
    /// The domain of chains, and the same memory in it.
    pub(super) chain_pd: Pd,
    pub(super) chain_memory: RegionAt,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) mailbox: Mailbox,
    host: usize,
    store_host: usize,
    region: RegionAt,
    store: StoreAt,
    calls: Endpoint,
    chain: Endpoint,
    /// What is under way, until its outcome is known.
    under_way: Option<Wish>,
    cookie: u64,
    /// READs of the last wish for some that are complete.
    reads: usize,
    /// What the client has on its host's card, and the store for it on its own, in the order in
    /// which they were created.
    pub(super) own: Vec<Object>,
    pub(super) stores: Vec<Object>,
}

/// The connection broke.
pub(super) struct Broken;

impl Connection {
    pub(super) fn new(
        world: &mut World,
        host: usize,
        doors: &Doors,
        options: &ConnectOptions,
        psns: [Psn; 4],
    ) -> Connection {
        let pd = world.hosts[host].nic.alloc_pd().expect("room for a protection domain");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = chain::register(&mut world.hosts[host], pd, END as usize, access);
        let queues = QueueOptions { sends: 16, receives: 16, ..QueueOptions::default() };
        let mut end = |host, pd| Endpoint::create(world, (host, pd), Transport::Rc, &queues, None);
        let (calls, chain, served) = (end(host, pd), end(host, pd), end(doors.host, doors.pd));
        // Each end opens what the other needs: the store its memory, the client room for answers.
        let kernels = ConnectOptions { access, dialect: Dialect::KERNELS, ..*options };
        calls.bring_up(world, &served, &kernels, (psns[0], psns[1]));
        let readable = ConnectOptions { access: Access::REMOTE_READ, ..kernels };
        served.bring_up(world, &calls, &readable, (psns[1], psns[0]));
        let program = remora_store::way::chain::program();
        let imports = [doors.chain_memory; 2];
        let loaded = chain::load(world, (doors.host, doors.chain_pd), &program, &imports);
        let far = loaded.client.expect("a program with a client");
        let closed = ConnectOptions { access: Access::empty(), ..*options };
        connect(world, (&chain, &far), &closed, (psns[2], psns[3]));
        loaded.start(world);
        let mut own = vec![Object::Pd(pd), Object::Region(region.key)];
        own.extend([calls, chain].iter().flat_map(objects_of));
        let stores = objects_of(&served).into_iter().chain(chain_objects(&loaded)).collect();
        let (mailbox, store) = (Mailbox::default(), doors.memory);
        Connection {
            mailbox,
            host,
            store_host: doors.host,
            region,
            store,
            calls,
            chain,
            under_way: None,
            cookie: 0,
            reads: 0,
            own,
            stores,
        }
    }

    /// Destroys what is left of both ends.
    pub(super) fn close(self, world: &mut World) -> Result<(), Violation> {
        let far = self.stores.iter().rev().map(|object| (self.store_host, object));
        let own = self.own.iter().rev().map(|object| (self.host, object));
        for (host, object) in own.chain(far) {
            object.destroy(world, host, CHECKER)?;
        }
        Ok(())
    }

    /// Carries out what the client's code wishes, and tells it what came of it. Returns whether
    /// there is something to tell.
    pub(super) fn look_after(&mut self, world: &mut World) -> Result<bool, Broken> {
        let outcome = self.outcome(world)?;
        if let Some(outcome) = outcome {
            self.under_way = None;
            self.mailbox.0.borrow_mut().1 = Some(outcome);
            return Ok(true);
        }
        if self.under_way.is_none() {
            let wish = self.mailbox.0.borrow_mut().0.take();
            if let Some(wish) = wish {
                self.begin(world, &wish)?;
                self.under_way = Some(wish);
            }
        }
        Ok(false)
    }

    fn sge(&self, at: u64, len: usize) -> Sge {
        Sge { addr: self.region.addr + at, len: len as u32, lkey: self.region.key }
    }

    fn bytes(&self, world: &World, at: u64, len: usize) -> Vec<u8> {
        world.hosts[self.host].memory.slice(self.region.addr + at, len).to_vec()
    }

    fn set(&self, world: &mut World, at: u64, bytes: &[u8]) {
        let memory = &mut world.hosts[self.host].memory;
        memory.slice_mut(self.region.addr + at, bytes.len()).copy_from_slice(bytes);
    }

    fn begin(&mut self, world: &mut World, wish: &Wish) -> Result<(), Broken> {
        match wish {
            Wish::Call(opcode, bytes) => self.call(world, *opcode, bytes),
            Wish::Read(pieces) => self.read(world, pieces),
            Wish::Ask(message) => self.ask(world, message),
        }
    }

    fn call(&mut self, world: &mut World, opcode: u64, bytes: &[u8]) -> Result<(), Broken> {
        self.cookie += 1;
        let at = |at| RemoteAddress { addr: self.region.addr + at, rkey: self.region.key };
        let is_short = bytes.len() <= PARAMS_MAX;
        let header = Header {
            notify: Notify::Word(at(WORD)),
            local: false,
            params_len: if is_short { bytes.len() as u16 } else { 0 },
            to: at(RESULT),
            max_len: (WORD - RESULT) as u32,
            cookie: self.cookie,
        };
        let message = [&header.to_bytes()[..], bytes].concat();
        self.set(world, WORD, &[0; STATUS_WORD_LEN]);
        self.set(world, CALL, &message);
        let op = match is_short {
            true => SendOp::Rpc { opcode },
            false => SendOp::RpcWrite { opcode },
        };
        self.post(world, &self.calls, op, &[self.sge(CALL, message.len())])
    }

    fn read(&mut self, world: &mut World, pieces: &[Piece]) -> Result<(), Broken> {
        let mut at = LANDING;
        self.reads = 0;
        for &(from, _, len) in pieces {
            let from = RemoteAddress { addr: from, rkey: self.store.rkey };
            let sges = [self.sge(at, len as usize)];
            self.post(world, &self.calls, SendOp::Read { from }, &sges)?;
            at += u64::from(len);
        }
        assert!(at <= ANSWER, "items are short here");
        Ok(())
    }

    fn ask(&mut self, world: &mut World, message: &[u8]) -> Result<(), Broken> {
        let room = [self.sge(ANSWER, (END - ANSWER) as usize)];
        let request = RecvRequest { wr_id: 0, sges: &room };
        self.chain.post_recv(world, &request).map_err(|_| Broken)?;
        self.set(world, CALL, message);
        let op = SendOp::Send { to: None, imm: None };
        self.post(world, &self.chain, op, &[self.sge(CALL, message.len())])
    }

    fn post(
        &self,
        world: &mut World,
        end: &Endpoint,
        op: SendOp,
        sges: &[Sge],
    ) -> Result<(), Broken> {
        let flags = SendFlags::SIGNALED;
        let wr_id = if let SendOp::Read { .. } = op { READ } else { 0 };
        let request = SendRequest { wr_id, op, data: Data::Sges(sges), flags };
        end.post_send(world, &request).map_err(|_| Broken)
    }

    /// What has come of the wish that is under way, as far as it is over.
    fn outcome(&mut self, world: &mut World) -> Result<Option<Outcome>, Broken> {
        let answer = self.completions(world)?;
        Ok(match &self.under_way {
            None => None,
            Some(Wish::Call(..)) => self.called(world),
            Some(Wish::Read(pieces)) => {
                (self.reads == pieces.len()).then(|| self.landed(world, pieces))
            }
            Some(Wish::Ask(_)) => answer.map(|len| Outcome::Asked(self.bytes(world, ANSWER, len))),
        })
    }

    /// Counts READs that are complete; returns the length of a chain's answer, if one has come.
    fn completions(&mut self, world: &mut World) -> Result<Option<usize>, Broken> {
        let mut answer = None;
        for end in [self.calls, self.chain] {
            for cq in [end.send_cq, end.recv_cq] {
                for entry in Endpoint::drain(world, self.host, cq) {
                    match entry.kind {
                        _ if entry.status != Status::Success => return Err(Broken),
                        WorkKind::Recv => answer = Some(entry.len as usize),
                        _ => self.reads += usize::from(entry.wr_id == READ),
                    }
                }
            }
        }
        Ok(answer)
    }

    /// The end of the call, once its status word says so. (The completion of its request says only
    /// that the store's card has it.)
    fn called(&self, world: &World) -> Option<Outcome> {
        let word = self.bytes(world, WORD, STATUS_WORD_LEN);
        let StatusWord { cookie, status, len } = StatusWord::parse(&word.try_into().ok()?)?;
        let is_ours = cookie == self.cookie;
        is_ours.then(|| Outcome::Called(status, self.bytes(world, RESULT, len as usize)))
    }

    /// What READs have brought.
    fn landed(&self, world: &World, pieces: &[Piece]) -> Outcome {
        let mut at = LANDING;
        let piece = |&(_, to, len): &Piece| {
            let bytes = self.bytes(world, at, len as usize);
            at += u64::from(len);
            (to, bytes)
        };
        Outcome::Read(pieces.iter().map(piece).collect())
    }
}

/// What a queue pair consists of, in the order of creation.
fn objects_of(end: &Endpoint) -> [Object; 3] {
    [Object::Cq(end.send_cq), Object::Cq(end.recv_cq), Object::Qp(end.qpn)]
}

/// What a program consists of, in the order of creation. Its imports are not its own.
fn chain_objects(chain: &SimChain) -> Vec<Object> {
    let layout = chain.layout();
    let mut objects = vec![Object::Region(layout.data.key)];
    objects.extend(layout.queues.iter().map(|queue| Object::Region(queue.ring.key)));
    objects.extend(layout.queues.iter().map(|queue| Object::Cq(queue.cq)));
    // Two queues may be of one queue pair.
    let numbers: BTreeSet<u32> = layout.queues.iter().map(|queue| queue.qpn).collect();
    objects.extend(numbers.into_iter().map(Object::Qp));
    objects
}
