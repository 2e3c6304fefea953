//! Loading: creates a program's queues, registers its memory, and links it, on any kind of card.

use remora_nic::Queue;

use super::element::QueueId;
use super::link::{Layout, LinkError, QueueAt, RegionAt};
use super::program::{Kind, Program};

/// A card that programs can be loaded into: what loading needs of it.
pub trait Target {
    /// Why the card refuses a call.
    type Error: From<LinkError>;

    /// Creates a completion queue that counts, for the program's next queue. Returns its number.
    ///
    /// # Errors
    /// The card refuses.
    fn counting_cq(&mut self) -> Result<u32, Self::Error>;

    /// Registers `len` bytes for the program's data; `len` may be 0.
    ///
    /// # Errors
    /// The card refuses.
    fn data(&mut self, len: usize) -> Result<RegionAt, Self::Error>;

    /// Creates a reliable queue pair with the wanted queues, at least one of them, and registers
    /// their rings for all access.
    ///
    /// # Errors
    /// The card refuses.
    fn queue_pair(
        &mut self,
        send: Option<Wanted>,
        recv: Option<Wanted>,
    ) -> Result<Made, Self::Error>;

    /// Connects a queue pair to itself, for all access.
    ///
    /// # Errors
    /// The card refuses.
    fn loop_back(&mut self, qpn: u32) -> Result<(), Self::Error>;

    /// Writes to the beginning of a region that was registered for this program.
    ///
    /// # Errors
    /// The bytes do not fit.
    fn write(&mut self, region: RegionAt, bytes: &[u8]) -> Result<(), Self::Error>;
}

/// A queue that a program needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The program's name of the queue.
    pub queue: QueueId,
    /// Slots of the ring.
    pub depth: u32,
    /// Bytes from one slot to the next.
    pub stride: u32,
    /// The most local entries that an element has.
    pub sges: usize,
    /// The queue is managed: it runs up to an index that ENABLE sets.
    pub managed: bool,
    /// The completion queue that its completions go to.
    pub cq: u32,
}

/// A queue pair that the card has created for a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Made {
    /// The queue pair's number.
    pub qpn: u32,
    /// The ring of its send queue, if one was wanted.
    pub send: Option<RegionAt>,
    /// The ring of its receive queue, if one was wanted.
    pub recv: Option<RegionAt>,
}

/// The program's queue pair that its client connects to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientAt {
    /// The queue pair's number.
    pub qpn: u32,
    /// The completion queue of its send queue.
    pub send_cq: u32,
    /// The completion queue of its receive queue.
    pub recv_cq: u32,
}

/// A program on a card, loaded but not started.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The addresses, keys and queue pair numbers of the program.
    pub layout: Layout,
    /// The queue pair that the client connects to, if the program has a client.
    pub client: Option<ClientAt>,
    /// By queue pair and queue: the index up to which the queue may run at first.
    starts: Vec<(QueueId, Queue, u32)>,
}

impl Loaded {
    /// Starts the program. If it has a client, the client must be connected first. The caller's
    /// `doorbell` lets a queue of a queue pair run up to an index.
    ///
    /// # Errors
    /// The first error of `doorbell`.
    pub fn start<E>(
        &self,
        mut doorbell: impl FnMut(u32, Queue, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        let enabled = self.starts.iter().filter(|(.., enabled)| *enabled > 0);
        enabled.copied().try_for_each(|(id, queue, enabled)| {
            doorbell(self.layout.queues[id.index()].qpn, queue, enabled)
        })
    }
}

/// Creates what a program needs on a card and links the program there. `imports` is the memory that
/// the program takes from outside, in the order of [`Program::imports`].
///
/// # Errors
/// The card refuses a queue or memory, or the program cannot be linked.
pub fn load<T: Target>(
    target: &mut T,
    program: &Program,
    imports: Vec<RegionAt>,
) -> Result<Loaded, T::Error> {
    let (reply, receive) = (only(program, Kind::Reply)?, only(program, Kind::Receive)?);
    let mut layout = Layout { data: target.data(program.data_len())?, imports, queues: vec![] };
    for _ in program.queues() {
        let cq = target.counting_cq()?;
        layout.queues.push(QueueAt { cq, ..QueueAt::default() });
    }
    for id in queues(program, Kind::Loop) {
        let made = target.queue_pair(Some(wanted(program, &layout, id)), None)?;
        target.loop_back(made.qpn)?;
        place(&mut layout, id, made.qpn, made.send);
    }
    let mut client = None;
    if let Some(some) = receive.or(reply) {
        let want = |id: QueueId| wanted(program, &layout, id);
        let made = target.queue_pair(reply.map(want), receive.map(want))?;
        let cq = |id: Option<QueueId>| layout.queues[id.unwrap_or(some).index()].cq;
        client = Some(ClientAt { qpn: made.qpn, send_cq: cq(reply), recv_cq: cq(receive) });
        for (id, ring) in [(reply, made.send), (receive, made.recv)] {
            id.into_iter().for_each(|id| place(&mut layout, id, made.qpn, ring));
        }
    }
    let image = program.link(&layout)?;
    for (at, bytes) in layout.queues.iter().zip(&image.queues) {
        target.write(at.ring, bytes)?;
    }
    target.write(layout.data, &image.data)?;
    let starts = program.queues().iter().zip(image.enabled).enumerate();
    let starts = starts.map(|(i, (queue, enabled))| (QueueId(i), half(queue.kind), enabled));
    Ok(Loaded { starts: starts.collect(), layout, client })
}

/// The program's queues of one kind.
fn queues(program: &Program, kind: Kind) -> impl Iterator<Item = QueueId> {
    let all = program.queues().iter().enumerate();
    all.filter(move |(_, queue)| queue.kind == kind).map(|(i, _)| QueueId(i))
}

/// The program's queue of a kind of which a program may have only one.
fn only(program: &Program, kind: Kind) -> Result<Option<QueueId>, LinkError> {
    let mut ids = queues(program, kind);
    let first = ids.next();
    if ids.next().is_some() { Err(LinkError::Clients) } else { Ok(first) }
}

/// Whether a queue of this kind is its queue pair's send queue or its receive queue.
fn half(kind: Kind) -> Queue {
    match kind {
        Kind::Receive => Queue::Recv,
        Kind::Loop | Kind::Reply => Queue::Send,
    }
}

fn wanted(program: &Program, layout: &Layout, id: QueueId) -> Wanted {
    let queue = &program.queues()[id.index()];
    Wanted {
        queue: id,
        depth: queue.depth(),
        stride: program.stride(id),
        sges: program.sges(id),
        managed: queue.managed,
        cq: layout.queues[id.index()].cq,
    }
}

fn place(layout: &mut Layout, id: QueueId, qpn: u32, ring: Option<RegionAt>) {
    let at = &mut layout.queues[id.index()];
    (at.qpn, at.ring) = (qpn, ring.unwrap_or_default());
}
