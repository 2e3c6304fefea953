//! A device on the card of another process (`remora nic`): the client's side. The other one is
//! [`daemon`](crate::daemon).
//!
//! - [`session`]: the socket, on which commands go to the card's process and results come back;
//!   [`ivshmem`]: the device that takes its place in a virtual machine;
//! - [`posting`]: work queues in memory that both processes share; [`passes`]: requests that this
//!   process carries out itself;
//! - [`loans`]: how the program's memory comes within the card's reach, by which of the [`ways`];
//!   [`convert`]: how private memory becomes shared; [`guard`], how writers wait meanwhile; and
//!   [`fork`], how it is private for a child;
//! - [`sharing`]: a session that several processes use; [`adoption`]: one that was taken over;
//!   [`adopted`]: what is adopted of it, and why something may not be;
//! - [`commands`]: the commands that leave something here, too;
//! - [`watch`]: the thread that waits for events and for the end of the card's process.
//!
//! Posting, polling and arming are accesses to shared memory ([`shared`](crate::shared)), without
//! a system call, unless the card's process sleeps and has to be woken.

mod adopted;
mod adoption;
mod commands;
mod convert;
pub(crate) mod fork;
mod guard;
mod ivshmem;
mod loans;
mod passes;
mod posting;
mod session;
mod sharing;
pub(crate) mod watch;
mod ways;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use remora_nic::cm::{CmEvent, ConnId};
use remora_nic::qp::State;
use remora_nic::queue::element::{encode_recv, encode_send};
use remora_nic::queue::{
    Completion, CompletionFlags, PollCqError, RecvRequest, SendFlags, SendRequest, Status, WorkKind,
};
use remora_nic::{Config, CreateError, Event as CardEvent, Pd, PostError, Queue, Time};

pub use self::adopted::AdoptError;
pub(crate) use self::adopted::{AdoptedQueuePair, AdoptedRegion};
use self::adoption::Adoptions;
use self::ivshmem::{Doorbell, NEWS};
use self::loans::Loans;
use self::passes::{OfQueuePair, Passes};
use self::posting::Posting;
pub use self::session::AttachError;
pub(crate) use self::session::Begun;
use self::session::Session;
pub(crate) use self::ways::Ways;
pub use self::ways::{MEMORY_VARIABLE, UnknownWay};
use crate::by_number::ByNumber;
use crate::commands::{Commands, Place};
use crate::driver::Clock;
use crate::fabric::FabricChoice;
use crate::memory::{Buffer, FileError, memfd};
use crate::message::{Join, KernelAnswer, KernelRequest, Loan, Object, Ticket, decode};
use crate::news::{Concerned, News};
use crate::shared::{Arena, CompletionConsumer, EventConsumer};

/// After so many polls that find nothing, a guest looks whether the session has ended: a forked
/// child has no thread that would.
const GUEST_LOOKS: u32 = 1 << 12;
/// Looks in a row that find nothing, at most, as far as they are counted.
const IDLE_MAX: u32 = 1 << 20;

/// A client's end of the card of another process.
pub(crate) struct Attached {
    session: Session,
    /// The socket at which the card's process listens, or the folder of a device.
    path: PathBuf,
    /// Entitles others to use the session.
    join: Join,
    /// Another process has the session, and gets its events.
    is_guest: bool,
    /// Which of the session's clients this is; one that takes the session over is a later one.
    epoch: u32,
    arena: Arena,
    doorbell: Doorbell,
    wake: OwnedFd,
    clock: Clock,
    config: Config,
    events: EventConsumer,
    /// Room for an event's bytes.
    event: Vec<u8>,
    queue_pairs: ByNumber<QueuePair>,
    shared_receives: HashMap<u32, Posting>,
    completion_queues: ByNumber<Completions>,
    /// The connections of this client, and whether they were established.
    connections: HashMap<ConnId, bool>,
    loans: Loans,
    /// Buffers of card memory, by their addresses in this process: their places in the arena.
    buffers: HashMap<u64, u64>,
    passes: Passes,
    pub(crate) news: News,
    ticket: Ticket,
    taken: Vec<Object>,
    adoptions: Adoptions,
    /// The card's process sleeps, and something was posted.
    wakes: bool,
    /// The end of the card's process was told.
    lost: bool,
    /// Looks in a row that have found nothing, and behind which nothing was posted.
    idle: u32,
    /// Polls of a guest that have found nothing, so far.
    guest_polls: u32,
}

/// The queues of a queue pair.
#[derive(Debug)]
struct QueuePair {
    /// The state that this client has last asked for.
    state: State,
    send: Option<Posting>,
    recv: Option<Posting>,
    cqs: [u32; 2],
    pd: Pd,
    /// All successes are reported.
    signal_all: bool,
    /// Requests that the card has, and whose completions the program has not polled.
    owed: u32,
    /// For requests that this process carries out itself, if it may.
    passes: Option<Box<OfQueuePair>>,
}

/// A completion queue.
#[derive(Debug)]
struct Completions {
    /// Its entries.
    consumer: CompletionConsumer,
    /// Those that are before them: of requests that this process has carried out itself, and some
    /// that it has taken from the others already.
    here: VecDeque<Completion>,
    /// Successes of such requests, of which the card does not know.
    counted: u64,
    /// What was flushed when the card's process ended.
    flushed: VecDeque<Completion>,
}

impl QueuePair {
    fn queue(&mut self, queue: Queue) -> Option<&mut Posting> {
        match queue {
            Queue::Send => self.send.as_mut(),
            Queue::Recv => self.recv.as_mut(),
        }
    }

    fn check_takes(&self, queue: Queue) -> Result<(), PostError> {
        if self.state.takes(queue) { Ok(()) } else { Err(PostError::State(self.state)) }
    }
}

impl Attached {
    /// The client's end of a session that has begun.
    pub(crate) fn new(begun: Begun, config: Config, news: News, ways: Ways) -> Attached {
        let Begun { session, path, welcome, clock, arena, doorbell, wake, .. } = begun;
        let (is_kept, ticket) = (begun.is_kept, begun.ticket);
        // What a session that is taken over has under way, this process does not know.
        let shares = begun.may_pass
            && FabricChoice::from_environment() == Ok(FabricChoice::Auto)
            && welcome.objects.is_empty()
            // The next process of a kept session learns of what has completed by the card alone.
            && !is_kept;
        let ways = if session.is_machine() { Ways::none() } else { ways };
        Attached {
            session,
            path,
            join: Join { session: welcome.session, token: welcome.share },
            is_guest: false,
            epoch: welcome.epoch,
            events: EventConsumer::new(&arena),
            arena,
            doorbell,
            wake,
            clock,
            config,
            event: Vec::new(),
            queue_pairs: ByNumber::default(),
            shared_receives: HashMap::new(),
            completion_queues: ByNumber::default(),
            connections: connections_of(&welcome.objects),
            loans: Loans::new(ways, is_kept, shares),
            buffers: HashMap::new(),
            passes: Passes::new(!shares),
            news,
            ticket,
            taken: welcome.objects,
            adoptions: Adoptions::default(),
            wakes: false,
            lost: false,
            idle: 0,
            guest_polls: 0,
        }
    }

    /// Entitles to the session.
    pub(crate) fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// What the session had already when it began for this process.
    pub(crate) fn taken(&self) -> &[Object] {
        &self.taken
    }

    /// The card's clock.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// The card's time.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// The descriptor that wakes this client.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The socket, which says when the card's process has ended.
    pub(crate) fn socket_fd(&self) -> BorrowedFd<'_> {
        self.session.as_fd()
    }

    /// Has another process taken the session over? Then all that is in the arena is that one's:
    /// this one posts and takes nothing more, also before it hears of the end of its connection.
    #[inline]
    fn is_fenced(&self) -> bool {
        self.arena.epoch() != self.epoch
    }

    /// May something be posted?
    #[inline]
    fn check_posts(&self) -> Result<(), PostError> {
        if self.lost || self.is_fenced() { Err(PostError::Gone) } else { Ok(()) }
    }

    /// Looks for events, for a thread that polls. Returns whether there were any, and how many
    /// looks in a row have found neither events nor completions. (A program that watches memory
    /// finds there what it waits for. It is taken to have done so when it posts.)
    #[inline]
    pub(crate) fn look(&mut self) -> (bool, u32) {
        let found = self.dispatch_events();
        self.idle = if found { 0 } else { (self.idle + 1).min(IDLE_MAX) };
        (found, self.idle)
    }

    /// Posts a send request; `srqn` names the shared receive queue of an XRC peer.
    #[inline]
    pub(crate) fn post_send(
        &mut self,
        qpn: u32,
        srqn: u32,
        request: &SendRequest<'_>,
    ) -> Result<(), PostError> {
        if self.carries_out(qpn, request) {
            return Ok(());
        }
        self.post(qpn, Queue::Send, request.flags, |raw| encode_send(request, srqn, raw))?;
        Ok(())
    }

    /// Would as many more send requests be taken now?
    pub(crate) fn check_sends(&self, qpn: u32, count: usize) -> Result<(), PostError> {
        self.check_posts()?;
        let qp = self.queue_pairs.get(&qpn).ok_or(PostError::UnknownQueue)?;
        qp.check_takes(Queue::Send)?;
        let room = qp.send.as_ref().map_or(0, Posting::room);
        if count <= room as usize { Ok(()) } else { Err(PostError::Full) }
    }

    /// Posts a receive request.
    #[inline]
    pub(crate) fn post_recv(
        &mut self,
        qpn: u32,
        request: &RecvRequest<'_>,
    ) -> Result<(), PostError> {
        self.post(qpn, Queue::Recv, SendFlags::empty(), |raw| encode_recv(request, raw))?;
        Ok(())
    }

    /// Writes an element's bytes into the next slot of a ring; returns its index.
    pub(crate) fn post_element(
        &mut self,
        qpn: u32,
        queue: Queue,
        element: &[u8],
    ) -> Result<u32, PostError> {
        self.use_chains();
        self.post(qpn, queue, SendFlags::empty(), |raw| {
            let room = raw.get_mut(..element.len());
            room.ok_or(remora_nic::queue::element::TooLong)?.copy_from_slice(element);
            Ok(element.len())
        })
    }

    #[inline]
    fn post(
        &mut self,
        qpn: u32,
        queue: Queue,
        flags: SendFlags,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, remora_nic::queue::element::TooLong>,
    ) -> Result<u32, PostError> {
        self.check_posts()?;
        let qp = self.queue_pairs.get_mut(&qpn).ok_or(PostError::UnknownQueue)?;
        let takes = qp.check_takes(queue);
        let reports = qp.reports(flags);
        // As on the card: a queue without a ring is full.
        let posting = qp.queue(queue).ok_or(PostError::Full)?;
        if !posting.is_managed() {
            takes?;
        }
        let number = posting.number();
        let is_reported = queue == Queue::Recv || reports;
        let (index, rings) = posting.post(is_reported, encode)?;
        qp.owed += u32::from(queue == Queue::Send && reports);
        self.idle = 0;
        if rings {
            self.wakes |= self.arena.ring(number);
        }
        Ok(index)
    }

    /// Posts a receive request to a shared receive queue.
    pub(crate) fn post_srq_recv(
        &mut self,
        srq: u32,
        request: &RecvRequest<'_>,
    ) -> Result<(), PostError> {
        self.check_posts()?;
        let posting = self.shared_receives.get_mut(&srq).ok_or(PostError::UnknownQueue)?;
        posting.post(true, |raw| encode_recv(request, raw))?;
        self.wakes |= self.arena.ring(posting.number());
        self.kick();
        Ok(())
    }

    /// The index of the element that is written next.
    pub(crate) fn next_index(&self, qpn: u32, queue: Queue) -> Option<u32> {
        let qp = self.queue_pairs.get(&qpn)?;
        let posting = match queue {
            Queue::Send => qp.send.as_ref(),
            Queue::Recv => qp.recv.as_ref(),
        };
        Some(posting.map_or(0, Posting::next_index))
    }

    /// Lets a queue run up to `index`.
    pub(crate) fn doorbell(&mut self, qpn: u32, queue: Queue, index: u32) -> Result<(), PostError> {
        self.check_posts()?;
        self.use_chains();
        let qp = self.queue_pairs.get_mut(&qpn).ok_or(PostError::UnknownQueue)?;
        qp.check_takes(queue)?;
        let posting = qp.queue(queue).ok_or(PostError::Full)?;
        posting.doorbell(index)?;
        self.wakes |= self.arena.ring(posting.number());
        Ok(())
    }

    /// Takes completions.
    #[inline]
    pub(crate) fn poll_cq(
        &mut self,
        cq: u32,
        out: &mut [Completion],
    ) -> Result<usize, PollCqError> {
        let queue = self.completion_queues.get_mut(&cq).ok_or(PollCqError::UnknownCq)?;
        if !queue.here.is_empty() {
            self.idle = 0;
            return Ok(take(&mut queue.here, out));
        }
        let found = self.take_entries(cq, out)?;
        if found > 0 {
            self.idle = 0;
            self.kick();
            return Ok(found);
        }
        if self.lost && !out.is_empty() {
            let queue = self.completion_queues.get_mut(&cq).ok_or(PollCqError::UnknownCq)?;
            return queue.take_flushed(out);
        }
        if self.is_guest {
            self.guest_polls = self.guest_polls.wrapping_add(1);
            if self.guest_polls.is_multiple_of(GUEST_LOOKS) {
                self.look_for_end();
            }
        }
        Ok(0)
    }

    /// Takes entries that the card's process has written.
    #[inline]
    fn take_entries(&mut self, cq: u32, out: &mut [Completion]) -> Result<usize, PollCqError> {
        if self.is_fenced() {
            return Ok(0);
        }
        let queue = self.completion_queues.get_mut(&cq).ok_or(PollCqError::UnknownCq)?;
        let (found, waits) = queue.consumer.poll(out)?;
        if waits && self.arena.ring(queue.consumer.number()) {
            self.wakes = true;
        }
        let mut ends = false;
        for entry in &out[..found] {
            let is_receive = entry.kind.is_receive();
            if let Some(qp) = self.queue_pairs.get_mut(&entry.qpn) {
                let posting = if is_receive { &mut qp.recv } else { &mut qp.send };
                posting.iter_mut().for_each(|posting| posting.note_completion(entry));
                qp.owed = qp.owed.saturating_sub(u32::from(!is_receive));
            }
            let invalidated = entry.flags.contains(CompletionFlags::INVALIDATED);
            if invalidated {
                self.passes.forget_region(entry.imm_or_key);
            }
            ends |= invalidated || entry.status != Status::Success;
        }
        if ends {
            // Memory that no peer may reach any more is the program's from here on.
            self.loans.settle();
        }
        Ok(found)
    }

    /// Takes entries that the card's process has written to those that are here, until `most` are.
    /// Returns whether there is room for more. A queue that has lost entries has none, and says so
    /// when it is polled.
    #[cold]
    fn take_over(&mut self, cq: u32, most: usize) -> bool {
        let mut out = [Completion::default(); 16];
        loop {
            let here = self.completion_queues.get(&cq).map_or(most, |queue| queue.here.len());
            let room = out.len().min(most.saturating_sub(here));
            let Ok(found) = self.take_entries(cq, &mut out[..room]) else { return false };
            if found == 0 {
                return room > 0;
            }
            if let Some(queue) = self.completion_queues.get_mut(&cq) {
                queue.here.extend(&out[..found]);
            }
        }
    }

    /// Has the next completion announced.
    pub(crate) fn req_notify_cq(
        &mut self,
        cq: u32,
        solicited_only: bool,
    ) -> Result<(), PollCqError> {
        let queue = self.completion_queues.get(&cq).ok_or(PollCqError::UnknownCq)?;
        queue.consumer.arm(solicited_only);
        if self.lost {
            // Nothing comes any more, and nobody is to sleep for it.
            self.pass_on(CardEvent::CompletionQueueNotify(cq));
        }
        Ok(())
    }

    /// Was something posted of which the card's process, which sleeps, has to be told?
    #[inline]
    pub(crate) fn wants_kick(&self) -> bool {
        self.wakes
    }

    /// Wakes the card's process, if it sleeps and something was posted.
    #[inline]
    pub(crate) fn kick(&mut self) {
        if std::mem::take(&mut self.wakes) {
            self.ring_doorbell();
        }
    }

    #[cold]
    fn ring_doorbell(&self) {
        if let Err(error) = self.doorbell.ring() {
            tracing::error!(%error, "cannot wake the card’s process");
        }
    }

    /// Hands the card's events to the tasks, threads and sinks that wait for them; returns whether
    /// there were any.
    #[inline]
    pub(crate) fn dispatch_events(&mut self) -> bool {
        self.events.any(&self.arena) && self.dispatch_each()
    }

    #[inline(never)]
    fn dispatch_each(&mut self) -> bool {
        if self.is_guest || self.is_fenced() {
            return false;
        }
        let mut any = false;
        while let Some(room) = self.events.next(&self.arena, &mut self.event) {
            any = true;
            if room && self.arena.ring(0) {
                self.ring_doorbell();
            }
            match decode::<CardEvent>(&self.event) {
                Ok(event) => {
                    self.note(&event);
                    if may_end_passes(&event) {
                        // As behind an error: the program may take its memory for its own.
                        self.loans.settle();
                    }
                    self.pass_on(event);
                }
                Err(error) => tracing::error!(%error, "an event of the card’s process"),
            }
        }
        any
    }

    /// Keeps what this client has to know of its connections.
    fn note(&mut self, event: &CardEvent) {
        let CardEvent::Cm(event) = event else { return };
        match event {
            CmEvent::ConnectRequest(request) => {
                self.connections.insert(request.conn, false);
            }
            CmEvent::Established { conn, .. } => {
                self.connections.insert(*conn, true);
            }
            _ => {}
        }
    }

    /// Makes a file reachable for the card, to be registered.
    pub(crate) fn add_file(&mut self, file: File) -> Result<Place, FileError> {
        match self.session.lend(Loan::File, Some(file.as_fd())) {
            Some(number) => Ok(Place::Lent { number, offset: 0 }),
            None if self.session.over().is_some() => Err(FileError::Gone),
            None => Err(FileError::Refused),
        }
    }

    /// Ends what [`Attached::add_file`] began.
    pub(crate) fn remove_file(&mut self, place: Place) {
        if let Place::Lent { number, .. } = place {
            self.session.take_back(number);
        }
    }

    /// Brings a buffer, which nobody writes meanwhile, within the card's reach, so that the card
    /// needs no system calls.
    pub(crate) fn share(&mut self, buffer: &mut Buffer) {
        if !self.session.is_machine() {
            self.loans.share(&mut self.session, buffer);
        }
    }

    /// Zeroed card memory as a buffer, where the card reaches no other memory: in a virtual
    /// machine. `None` elsewhere.
    pub(crate) fn card_buffer(&mut self, len: usize) -> Option<Result<Buffer, CreateError>> {
        self.session.is_machine().then(|| {
            let at = self.alloc_dm(len as u64)?;
            let part = Buffer::part(self.arena.memory(), at as usize, len);
            let buffer = part.map_err(|_| CreateError::NoMemory { bytes: len })?;
            self.buffers.insert(buffer.addr(), at);
            Ok(buffer)
        })
    }

    /// Ends what [`Attached::share`] or [`Attached::card_buffer`] began, for the buffer at `addr`.
    pub(crate) fn end_loan(&mut self, addr: u64) {
        match self.buffers.remove(&addr) {
            Some(at) => drop(self.free_dm(at)),
            None => self.loans.end(&mut self.session, addr),
        }
    }

    /// Asks something of the card's kernels. `module` are the bytes of a module that goes with the
    /// request.
    ///
    /// # Errors
    /// Why it is refused, in words.
    pub(crate) fn kernel(
        &mut self,
        request: &KernelRequest,
        module: Option<&[u8]>,
    ) -> Result<KernelAnswer, String> {
        let file = module.map(|bytes| {
            let file = memfd::sealed("remora-module", bytes.len() as u64)?;
            rustix::io::pwrite(&file, bytes, 0).map(|_| file).map_err(std::io::Error::from)
        });
        let file = file.transpose();
        let file = file.map_err(|error| format!("the module cannot be sent there: {error}"))?;
        self.session.kernel(request, file.as_ref().map(AsFd::as_fd))
    }

    /// Announces that this client sleeps from now on; returns whether it may: there are no events.
    pub(crate) fn will_sleep(&mut self) -> bool {
        if self.is_guest || self.is_fenced() {
            return true;
        }
        if !self.session.is_machine() {
            self.events.will_sleep(&self.arena, self.epoch);
        }
        !self.events.any(&self.arena)
    }

    /// How long a thread may sleep before it looks for news; `None`: until it is woken.
    pub(crate) fn pause(&self) -> Option<Duration> {
        self.session.is_machine().then_some(NEWS)
    }

    /// This client is awake.
    pub(crate) fn woke(&mut self) {
        if !self.is_guest && !self.session.is_machine() {
            self.events.woke(&self.arena, self.epoch);
        }
    }

    /// Was the end of the card's process told?
    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Looks whether the card's process has ended, and if so tells all that wait for it.
    pub(crate) fn look_for_end(&mut self) {
        self.session.look();
        self.tell_end();
    }

    /// If the session is over, and nobody knows yet: requests are flushed, connections end, those
    /// that sleep are woken, and the device has a fatal event.
    pub(crate) fn tell_end(&mut self) {
        if self.lost {
            return;
        }
        let Some(reason) = self.session.over().map(str::to_owned) else { return };
        // What it said before it ended. A sink that commands something in answer may be told of the
        // end by that.
        self.dispatch_events();
        if std::mem::replace(&mut self.lost, true) {
            return;
        }
        self.loans.shut();
        self.end_passes();
        tracing::error!(
            reason,
            "the process that has the card is gone, and with it all connections"
        );
        let queues: Vec<_> = self.completion_queues.keys().copied().collect();
        // So that it is known which requests are done.
        for cq in &queues {
            self.take_over(*cq, usize::MAX);
        }
        self.flush();
        for cq in queues {
            self.pass_on(CardEvent::CompletionQueueNotify(cq));
        }
        for (conn, established) in std::mem::take(&mut self.connections) {
            self.pass_on(CardEvent::Cm(match established {
                true => CmEvent::Disconnected { conn, private_data: Vec::new(), timed_out: false },
                false => CmEvent::Unreachable { conn },
            }));
        }
        self.pass_on(CardEvent::DeviceFatal);
        self.news.wakes.note_all_cm();
    }

    /// The requests that are not done, as far as is known, complete as flushed ones.
    fn flush(&mut self) {
        for (qpn, qp) in &mut self.queue_pairs {
            let sides = [(&mut qp.send, WorkKind::Unread), (&mut qp.recv, WorkKind::Recv)];
            for ((posting, kind), cq) in sides.into_iter().zip(qp.cqs) {
                let Some(queue) = self.completion_queues.get_mut(&cq) else { continue };
                for wr_id in posting.iter_mut().flat_map(Posting::left) {
                    let (status, qpn) = (Status::Flushed, *qpn);
                    let entry = Completion { wr_id, status, kind, qpn, ..Completion::default() };
                    queue.flushed.push_back(entry);
                }
            }
        }
    }

    /// For the end of the device: the card's process does the rest when the socket closes.
    pub(crate) fn finish(&mut self) {
        self.kick();
    }
}

impl Completions {
    /// Takes what was flushed. Behind that, the queue is of no more use.
    fn take_flushed(&mut self, out: &mut [Completion]) -> Result<usize, PollCqError> {
        match take(&mut self.flushed, out) {
            0 => Err(PollCqError::Gone),
            count => Ok(count),
        }
    }
}

/// May an event say that a queue pair or a connection has ended? All but the frequent ones may: to
/// look costs little.
fn may_end_passes(event: &CardEvent) -> bool {
    !matches!(event, CardEvent::CompletionQueueNotify(_))
}

/// The connections of a session that was taken over: their ends are told to this process.
fn connections_of(objects: &[Object]) -> HashMap<ConnId, bool> {
    let of = objects.iter().filter_map(|object| match object {
        Object::Connection(conn) => Some((*conn, true)),
        _ => None,
    });
    of.collect()
}

/// Moves the oldest entries to `out`; returns how many.
fn take(entries: &mut VecDeque<Completion>, out: &mut [Completion]) -> usize {
    let count = out.len().min(entries.len());
    for (to, entry) in out.iter_mut().zip(entries.drain(..count)) {
        *to = entry;
    }
    count
}

impl Concerned for Attached {
    fn news(&mut self) -> &mut News {
        &mut self.news
    }
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attached").field("session", &self.session).finish_non_exhaustive()
    }
}
