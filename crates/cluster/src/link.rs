//! A link: the queue pair to another node, and what is posted on it.
//!
//! WRITEs of the log go from the own region, where their bytes stay until the peer is known to hold
//! them. Short ones (answers, what is committed) are copied as they are posted, since their words
//! change. Where the peer is to look at once, the last WRITE of a step takes one of its receive
//! requests, which wakes it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use remora::memory::BufferError;
use remora::nic::qp::{QpAttr, State};
use remora::nic::queue::{
    Completion, Data, RecvRequest, SendFlags, SendOp, SendRequest, Sge, Status, WorkKind,
};
use remora::nic::{Access, CreateError, PostError};
use remora::{
    CompletionChannel, CompletionQueue, Connection, Device, MemoryRegion, ProtectionDomain,
    QueuePair, QueuePairOptions, Remote,
};
use remora_store::memory::Memory;
use remora_store::replica::{MEMBERS_MAX, Mark};
use remora_store::way::region::Region;
use thiserror::Error;

use crate::incoming::Incoming;
use crate::wire::FRAME;

/// The links that a node has at most: to all other members, old ones that end included.
pub(crate) const LINKS_MAX: usize = 2 * MEMBERS_MAX;
/// Requests under way at most, and receive requests.
const SENDS: u32 = 64;
const RECVS: usize = 128;
/// Frames on their way at most.
const FRAMES: usize = 8;
/// Every so many requests tell when they are done; the others are done with them.
const SIGNAL_EVERY: u64 = 16;
/// WRITEs up to this length are copied as they are posted, in bytes.
const SHORT: usize = 24;

/// Where the requests of all links complete. What is sent has a queue of its own: a card that is
/// shared with other processes carries out WRITEs at once while nobody sleeps for their queue, so
/// that one is armed only while something is under way.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) channel: CompletionChannel,
    pub(crate) sends: CompletionQueue,
    pub(crate) receives: CompletionQueue,
}

impl Queues {
    /// As long as a node's links need.
    pub(crate) fn new(device: &Device, channel: CompletionChannel) -> Result<Queues, CreateError> {
        let sends = device.create_cq_on(&channel, LINKS_MAX * SENDS as usize)?;
        let receives = device.create_cq_on(&channel, LINKS_MAX * RECVS)?;
        Ok(Queues { channel, sends, receives })
    }
}

/// What waits to be posted.
#[derive(Debug)]
enum Posting {
    /// Where `until` is said, its end is to be told.
    Write {
        at: u64,
        len: u64,
        until: Option<Mark>,
    },
    Short {
        at: u64,
        len: usize,
        bytes: [u8; SHORT],
        until: Option<Mark>,
    },
    Read {
        at: u64,
        len: u64,
        is_last: bool,
    },
    Frame(Vec<u8>),
    Probe,
}

/// What is free again, or there, when a request is done.
#[derive(Debug)]
enum HeldUntil {
    Slot(usize),
    LastRead,
    /// The peer's ring has the log up to there.
    Written(Mark),
}

/// What a completion was about.
#[derive(Debug)]
pub(crate) enum Done {
    Nothing,
    /// The peer has written something, or has sent a frame.
    Written,
    Frame(Vec<u8>),
    /// All that was to be read lies in the own region.
    Read,
    /// The peer's ring has the log up to there.
    Acknowledged(Mark),
}

/// The link is of no more use.
#[derive(Debug, Error)]
pub(crate) enum Broken {
    #[error("the card takes no more requests: {0}")]
    Post(#[from] PostError),
    #[error("a request failed: {0}")]
    Failed(Status),
    #[error("a place in the link's memory is out of range: {0}")]
    Memory(#[from] BufferError),
    #[error("the peer says what is out of range")]
    Range,
}

/// Which link of this process it is: no other one has had the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkId(u64);

impl LinkId {
    pub(crate) fn next() -> LinkId {
        static MADE: AtomicU64 = AtomicU64::new(0);
        LinkId(MADE.fetch_add(1, Relaxed))
    }
}

/// A link. Dropping it disconnects.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) id: LinkId,
    /// The epoch in which its primary asked for it.
    pub(crate) epoch: u32,
    pub(crate) incoming: Incoming,
    queue_pair: QueuePair,
    connection: Option<Connection>,
    remote: Remote,
    /// Receive slots, then slots of frames on their way.
    slots: MemoryRegion,
    is_receiving: bool,
    waiting: VecDeque<Posting>,
    held: VecDeque<(u64, HeldUntil)>,
    free: Vec<usize>,
    /// The peer is to look at once at what waits, or at what was posted since it was last woken.
    wakes: bool,
    /// The requests posted, the last one that tells when it is done, and the last one that was.
    posted: u64,
    signaled: u64,
    done: u64,
}

/// Makes the queue pair and the memory of a link.
pub(crate) fn parts(
    domain: &ProtectionDomain,
    queues: &Queues,
) -> Result<(QueuePair, MemoryRegion), String> {
    let Queues { sends, receives, .. } = queues;
    let options = QueuePairOptions::rc(sends).recv_cq(receives);
    let options = options.send_depth(SENDS).recv_depth(RECVS as u32);
    let queue_pair = domain.create_qp(&options).map_err(|error| error.to_string())?;
    let slots = domain.alloc((RECVS + FRAMES) * FRAME, Access::LOCAL_WRITE);
    Ok((queue_pair, slots.map_err(|error| error.to_string())?))
}

impl Link {
    /// A link over a queue pair that is connected, or is about to be.
    pub(crate) fn new(epoch: u32, parts: (QueuePair, MemoryRegion), remote: Remote) -> Link {
        let (queue_pair, slots) = parts;
        Link {
            id: LinkId::next(),
            epoch,
            incoming: Incoming::default(),
            queue_pair,
            connection: None,
            remote,
            slots,
            is_receiving: false,
            waiting: VecDeque::new(),
            held: VecDeque::new(),
            free: (RECVS..RECVS + FRAMES).collect(),
            wakes: false,
            posted: 0,
            signaled: 0,
            done: 0,
        }
    }

    pub(crate) fn qpn(&self) -> u32 {
        self.queue_pair.qpn()
    }

    /// The connection is complete; it ends with the link.
    pub(crate) fn keep(&mut self, connection: Connection) {
        self.connection = Some(connection);
    }

    /// Whether the peer has ended the connection.
    pub(crate) fn is_over(&self) -> bool {
        let over =
            |connection: &Connection| connection.end() == remora::ConnectionEnd::Disconnected;
        self.connection.as_ref().is_some_and(over)
    }

    /// Posts the receive requests, once the queue pair takes them.
    pub(crate) fn receive(&mut self) -> Result<(), Broken> {
        if self.is_receiving {
            return Ok(());
        }
        for slot in 0..RECVS {
            self.post_receive(slot)?;
        }
        self.is_receiving = true;
        Ok(())
    }

    fn post_receive(&self, slot: usize) -> Result<(), Broken> {
        let sges = [self.slots.sge((slot * FRAME) as u64, FRAME as u32)];
        Ok(self.queue_pair.post_recv(&RecvRequest { wr_id: slot as u64, sges: &sges })?)
    }

    /// From now on nobody reads or writes here over this link.
    pub(crate) fn fence(&self) {
        let error = QpAttr { state: Some(State::Error), ..QpAttr::default() };
        if let Err(error) = self.queue_pair.modify(&error) {
            // Every state of a queue pair leads to the error state.
            panic!("a queue pair does not go to the error state: {error}");
        }
    }

    /// Writes bytes of the own region to the same place of the peer's, which looks at once if this
    /// `wakes` it. With `until`, [`Done::Acknowledged`] is told.
    pub(crate) fn write(
        &mut self,
        region: &Region,
        bytes: (u64, u64),
        until: Option<Mark>,
        wakes: bool,
    ) {
        self.wakes |= wakes;
        let (at, len) = bytes;
        if len as usize <= SHORT {
            return self.write_short(region, at, len as usize, until);
        }
        if let Some(Posting::Write { at: before, len: so_far, until: end }) =
            self.waiting.back_mut()
            && *before + *so_far == at
        {
            *so_far += len;
            *end = until;
            return;
        }
        self.waiting.push_back(Posting::Write { at, len, until });
    }

    fn write_short(&mut self, region: &Region, at: u64, len: usize, until: Option<Mark>) {
        let mut bytes = [0; SHORT];
        region.read(at, &mut bytes[..len]);
        if let Some(Posting::Short { at: before, bytes: older, len: as_long, .. }) =
            self.waiting.back_mut()
            && (*before, *as_long) == (at, len)
        {
            *older = bytes;
            return;
        }
        self.waiting.push_back(Posting::Short { at, len, bytes, until });
    }

    /// Reads bytes of the peer's region to the same places of the own.
    pub(crate) fn read(&mut self, pieces: &[(u64, u64)]) {
        for (index, (at, len)) in pieces.iter().copied().enumerate() {
            let is_last = index + 1 == pieces.len();
            self.waiting.push_back(Posting::Read { at, len, is_last });
        }
    }

    /// Sends a frame.
    pub(crate) fn send(&mut self, frame: Vec<u8>) {
        self.waiting.push_back(Posting::Frame(frame));
    }

    /// Looks whether the peer's card answers still, if nothing is on its way there: it is written
    /// nothing, of which the peer hears nothing. If it does not answer, the link breaks.
    pub(crate) fn probe(&mut self) {
        if self.waiting.is_empty() {
            self.waiting.push_back(Posting::Probe);
        }
    }

    /// Whether a frame sent now leaves soon.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < FRAMES
    }

    /// Posts what waits, as far as there is room.
    pub(crate) fn flush(&mut self, region: &Region) -> Result<(), Broken> {
        while let Some(posting) = self.waiting.front() {
            let needs_slot = matches!(posting, Posting::Frame(_));
            let is_full = self.posted - self.done >= u64::from(SENDS);
            if is_full || needs_slot && self.free.is_empty() {
                return Ok(());
            }
            let posting = self.waiting.pop_front().expect("it was there");
            let is_last_of_step =
                self.waiting.is_empty() || self.posted + 1 - self.done >= u64::from(SENDS);
            self.post(region, &posting, is_last_of_step)?;
        }
        Ok(())
    }

    fn post(&mut self, region: &Region, posting: &Posting, ends: bool) -> Result<(), Broken> {
        let imm = (ends && self.wakes).then_some(0);
        let (op, sge, inline) = match posting {
            Posting::Write { at, len, .. } => {
                (SendOp::Write { to: self.there(*at, *len)?, imm }, own(region, *at, *len), None)
            }
            Posting::Short { at, len, bytes, .. } => {
                let to = self.there(*at, *len as u64)?;
                (SendOp::Write { to, imm }, Sge::default(), Some(&bytes[..*len]))
            }
            Posting::Read { at, len, .. } => {
                (SendOp::Read { from: self.there(*at, *len)? }, own(region, *at, *len), None)
            }
            Posting::Frame(bytes) => {
                let slot = *self.free.last().expect("flush looked for one");
                self.slots.write_at(slot * FRAME, bytes)?;
                let sge = self.slots.sge((slot * FRAME) as u64, bytes.len() as u32);
                (SendOp::Send { imm: None, to: None }, sge, None)
            }
            Posting::Probe => {
                let to = self.there(0, 0)?;
                (SendOp::Write { to, imm: None }, Sge::default(), Some(&[][..]))
            }
        };
        let number = self.posted + 1;
        let held = self.held_by(posting);
        let is_signaled = held.is_some() || number.is_multiple_of(SIGNAL_EVERY);
        let flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let sges = [sge];
        let data = inline.map_or(Data::Sges(&sges), Data::Inline);
        self.queue_pair.post_send(&SendRequest { wr_id: number, op, data, flags })?;
        self.posted = number;
        if is_signaled {
            self.signaled = number;
        }
        self.wakes &= imm.is_none();
        self.held.extend(held.map(|held| (number, held)));
        Ok(())
    }

    /// What is there once a request is done.
    fn held_by(&mut self, posting: &Posting) -> Option<HeldUntil> {
        match posting {
            Posting::Write { until, .. } | Posting::Short { until, .. } => {
                until.map(HeldUntil::Written)
            }
            Posting::Read { is_last, .. } => is_last.then_some(HeldUntil::LastRead),
            Posting::Frame(_) => self.free.pop().map(HeldUntil::Slot),
            Posting::Probe => None,
        }
    }

    /// Whether something is under way of which is told when it is done.
    pub(crate) fn awaits(&self) -> bool {
        self.signaled > self.done
    }

    /// The peer's bytes at a place.
    fn there(&self, at: u64, len: u64) -> Result<remora::nic::queue::RemoteAddress, Broken> {
        let part = self.remote.get(at as usize..(at + len) as usize).ok_or(Broken::Range)?;
        Ok(part.into())
    }

    /// A request is done.
    pub(crate) fn complete(&mut self, completion: &Completion) -> Result<Done, Broken> {
        if completion.status != Status::Success {
            return Err(Broken::Failed(completion.status));
        }
        if !completion.kind.is_receive() {
            return Ok(self.finish(completion.wr_id));
        }
        let slot = completion.wr_id as usize;
        let done = match completion.kind {
            WorkKind::Recv => {
                let mut bytes = vec![0; (completion.len as usize).min(FRAME)];
                self.slots.read_at(slot * FRAME, &mut bytes)?;
                Done::Frame(bytes)
            }
            _ => Done::Written,
        };
        self.post_receive(slot)?;
        Ok(done)
    }

    fn finish(&mut self, until: u64) -> Done {
        self.done = self.done.max(until);
        let mut done = Done::Nothing;
        while self.held.front().is_some_and(|(number, _)| *number <= until) {
            match self.held.pop_front() {
                Some((_, HeldUntil::Slot(slot))) => self.free.push(slot),
                Some((_, HeldUntil::LastRead)) => done = Done::Read,
                Some((_, HeldUntil::Written(mark))) => done = Done::Acknowledged(mark),
                None => {}
            }
        }
        done
    }
}

fn own(region: &Region, at: u64, len: u64) -> Sge {
    region.region().sge(at, u32::try_from(len).unwrap_or(u32::MAX))
}
