//! A link: a ring each way to another card, and the connection that says when it ends.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use remora_nic::wire::MAX_HEADER;
use remora_nic::{PayloadRef, Segment, Transmit, TransmitBatch};
use rustix::event::epoll;

use super::rendezvous;
use super::ring::{Broken, Consumer, Producer, ROOM};
use crate::closer::Closer;
use crate::memory::{Gather, PageAligned};

/// How long packets wait for a peer that takes nothing. Then they are dropped, as the kernel drops
/// packets for which a socket has no room: packets to all other peers wait behind them.
const PATIENCE: Duration = Duration::from_millis(50);
/// Bytes that are taken from a ring at a time: they are handled while they are in the cache.
const BATCH_BYTES: usize = 64 << 10;

/// An epoll descriptor, and what closes the connections that it tells of.
pub(super) struct Events {
    pub(super) poll: OwnedFd,
    pub(super) closer: Closer,
}

impl Events {
    /// Closes what has come beside a message, where nobody waits.
    pub(super) fn put_away(&self, files: Vec<OwnedFd>) {
        if !files.is_empty() {
            self.closer.close(files);
        }
    }
}

/// A descriptor of which an epoll descriptor tells when it is readable.
pub(super) struct Watched {
    /// There until the drop.
    fd: Option<OwnedFd>,
    events: Arc<Events>,
    process: u32,
    is_connection: bool,
}

impl Watched {
    /// A descriptor that the system closes at once.
    pub(super) fn new(events: &Arc<Events>, fd: OwnedFd, token: u64) -> io::Result<Watched> {
        epoll::add(&events.poll, &fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        let (events, process) = (events.clone(), std::process::id());
        Ok(Watched { fd: Some(fd), events, process, is_connection: false })
    }

    /// A connection, by which anything may come.
    pub(super) fn connection(
        events: &Arc<Events>,
        connection: OwnedFd,
        token: u64,
    ) -> io::Result<Watched> {
        let mut watched = Watched::new(events, connection, token)?;
        watched.is_connection = true;
        Ok(watched)
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is there until the drop").as_fd()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        // A forked child may keep the descriptor open, and then its end alone is not enough. The
        // child itself leaves the parent's events alone.
        if self.process == std::process::id() {
            epoll::delete(&self.events.poll, &fd).ok();
        }
        if self.is_connection {
            self.events.closer.close_connection(fd);
        }
    }
}

/// A ring each way to another card.
pub(super) struct Link {
    pub(super) id: u64,
    pub(super) peer: IpAddr,
    pub(super) connection: Watched,
    /// The process at the other end: it is watched as long as there is the link.
    pub(super) _process: Option<Watched>,
    pub(super) out: Producer,
    pub(super) into: Consumer,
    /// Packets have an ICRC, since one of the cards captures them.
    pub(super) sums: bool,
    /// Packets that came before by UDP are to be taken first.
    pub(super) fresh: bool,
    /// The other end is closed; what it has sent is still to be taken.
    pub(super) over: bool,
    pub(super) broken: Option<Broken>,
    /// Since when the peer has taken nothing, with its ring full.
    pub(super) full_since: Option<Instant>,
}

/// What became of a packet for a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Put {
    Sent,
    /// The ring is full.
    Full,
    /// The peer has taken nothing for too long: the packet is dropped.
    Dropped,
    /// Its memory could not be read.
    Fault,
    /// The ring is of no use any more.
    Broken,
}

/// Packets that were taken from a ring.
pub(super) struct Batch {
    pub(super) bytes: PageAligned,
    /// Where each is, its length and its traffic class.
    pub(super) packets: Vec<(usize, usize, u8)>,
    pub(super) from: IpAddr,
}

impl Batch {
    pub(super) fn new(from: IpAddr) -> Batch {
        let bytes = PageAligned::new(BATCH_BYTES + ROOM);
        Batch { bytes, packets: Vec::with_capacity(BATCH_BYTES / 64), from }
    }
}

impl Link {
    /// Copies a packet of `batch` to the ring. `ahead` may have bytes of its payload.
    #[inline]
    pub(super) fn put<'a>(
        &mut self,
        packet: &'a Transmit,
        batch: &'a TransmitBatch,
        memory: &mut impl Gather,
        ahead: impl Fn(&Segment) -> Option<&'a [u8]>,
    ) -> Put {
        let (header, tos) = (packet.header(), packet.path.traffic_class | packet.ecn as u8);
        let place = match self.out.reserve(header.len(), packet.datagram_len(), tos) {
            Ok(Some(place)) => place,
            Ok(None) => return self.full(),
            Err(broken) => return self.give_up(broken),
        };
        let ring = self.out.memory();
        let mut at = place.at;
        // Where the next `len` bytes go.
        let mut next = |len: usize| {
            let here = at;
            at = (at + len) & (ring.data_len() - 1);
            here
        };
        ring.write(next(header.len()), header);
        match batch.payload(packet) {
            PayloadRef::Segments(segments) => {
                for segment in segments {
                    let len = segment.len as usize;
                    let to = next(len);
                    match ahead(segment) {
                        Some(bytes) => ring.write(to, bytes),
                        None if memory.read_to_shared(segment.addr, len, ring, to).is_err() => {
                            return Put::Fault;
                        }
                        None => {}
                    }
                }
            }
            PayloadRef::Bytes(bytes) => ring.write(next(bytes.len()), bytes),
        }
        ring.write(next(packet.pad()), &[0; 3][..packet.pad()]);
        self.out.show(place);
        self.full_since = None;
        Put::Sent
    }

    /// Copies whole packets of `segment` bytes, the last of which may be shorter, to the ring: all
    /// of them or none.
    pub(super) fn put_group(&mut self, tos: u8, segment: usize, bytes: &[u8]) -> Put {
        match self.room() {
            Ok(room) if room < bytes.len().div_ceil(segment) => return self.full(),
            Ok(_) => {}
            Err(broken) => return self.give_up(broken),
        }
        for packet in bytes.chunks(segment) {
            match self.out.reserve(packet.len().min(MAX_HEADER), packet.len(), tos) {
                Ok(Some(place)) => {
                    self.out.memory().write(place.at, packet);
                    self.out.show(place);
                }
                // There is room, as was seen above.
                Ok(None) => {}
                Err(broken) => return self.give_up(broken),
            }
        }
        self.full_since = None;
        Put::Sent
    }

    /// How many packets there is room for.
    pub(super) fn room(&mut self) -> Result<usize, Broken> {
        Ok(self.out.look()? / ROOM)
    }

    #[cold]
    fn give_up(&mut self, broken: Broken) -> Put {
        self.broken = Some(broken);
        Put::Broken
    }

    /// The ring is full: may packets wait?
    #[cold]
    fn full(&mut self) -> Put {
        match self.full_since {
            Some(since) if since.elapsed() >= PATIENCE => Put::Dropped,
            since => {
                self.full_since = since.or_else(|| Some(Instant::now()));
                Put::Full
            }
        }
    }

    /// Takes as many packets as there are, and as fit; returns how many.
    #[inline]
    pub(super) fn take(&mut self, batch: &mut Batch) -> usize {
        batch.packets.clear();
        batch.from = self.peer;
        let mut used = 0;
        while used < BATCH_BYTES {
            match self.into.take(&mut batch.bytes[used..]) {
                Ok(Some(taken)) => {
                    let start = used + taken.start;
                    batch.packets.push((start, taken.len, taken.tos));
                    used = (start + taken.len).next_multiple_of(64);
                }
                Ok(None) => break,
                Err(broken) => {
                    self.broken = Some(broken);
                    break;
                }
            }
        }
        if self.into.release() {
            rendezvous::wake(self.connection.as_fd());
        }
        batch.packets.len()
    }
}
