//! A connected stream: its memory, its queue pair, and the messages it exchanges.

use core::ffi::c_int;
use core::mem::size_of;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use super::options::Sizes;
use super::wire::{self, Hello, Mapping, Piece};
use crate::abi::rdma_cma::*;
use crate::abi::*;
use crate::ibverbs::{channel, cq, mr, poll, post, recv};
use crate::rdmacm::queue_pair;
use crate::rdmacm::{EINVAL, ENOMEM, Errno, Result};

/// The most control messages under way at a time.
const CONTROLS: u32 = 4;
/// The largest first data message of a call; each later one may be twice as large as the one
/// before. So the peer reads the first while the second travels.
const FIRST_TRANSFER: usize = 2048;
const MAX_TRANSFER: usize = 65_536;
/// A socket is writable if there is this much room, or half of a smaller buffer.
const LOW_WATER: usize = 2048;
/// Marks a work request as a receive.
const RECV: u64 = 1 << 63;
/// Completions taken at a time.
const BATCH: usize = 32;

/// Registered memory of a stream.
#[derive(Debug)]
pub(super) struct Buffer {
    at: NonNull<u8>,
    layout: Layout,
    mr: *mut ibv_mr,
}

// SAFETY: the memory is accessed by raw pointers only; verbs check the handle.
unsafe impl Send for Buffer {}

impl Buffer {
    pub(super) fn new(pd: *mut ibv_pd, len: usize, access: ibv_access_flags) -> Result<Buffer> {
        let layout = Layout::from_size_align(len.max(1), 4096).map_err(|_| ENOMEM)?;
        // SAFETY: the layout's size is not zero.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(ENOMEM)?;
        // The memory is freed only after the region is deregistered: see `drop`.
        let mr = mr::reg_mr(pd, at.as_ptr().cast(), len, access as c_int);
        if mr.is_null() {
            let error = Errno::last();
            // SAFETY: allocated above with this layout.
            unsafe { dealloc(at.as_ptr(), layout) };
            return Err(error);
        }
        Ok(Buffer { at, layout, mr })
    }

    fn len(&self) -> usize {
        self.layout.size()
    }

    fn addr(&self) -> u64 {
        self.at.as_ptr() as u64
    }

    /// The local and the remote key.
    pub(super) fn keys(&self) -> (u32, u32) {
        // SAFETY: the region lives as long as this value.
        unsafe { ((*self.mr).lkey, (*self.mr).rkey) }
    }

    /// The address of the byte at `offset`.
    pub(super) fn byte(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.len());
        self.at.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        mr::dereg_mr(self.mr);
        // SAFETY: allocated with this layout; the region was just deregistered.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
    }
}

/// A stream over a queue pair.
#[derive(Debug)]
pub(super) struct Stream {
    id: *mut rdma_cm_id,
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    pub(super) events: *mut ibv_comp_channel,
    pub(super) comp_fd: c_int,
    armed: bool,
    sizes: Sizes,
    inline: u32,

    send: Buffer,
    send_at: usize,
    send_room: usize,
    /// Room in the send queue: for data messages, and for control messages.
    requests_room: u32,
    controls_room: u32,
    /// The number of data messages sent, and the number that may be sent.
    sent: u16,
    may_send: u16,
    /// The entry of the table of receive buffers that takes the next data.
    target: usize,

    recv: Buffer,
    recv_at: usize,
    /// Bytes that were read since a half of the buffer was last given to the peer.
    recv_free: usize,
    recv_free_at: usize,
    /// The number of data messages read, and the number at which the peer gets more credits.
    read: u16,
    credits_due_at: u16,
    arrived: VecDeque<usize>,

    /// The receive buffers of the peer, then its mapped buffers; the peer writes this table.
    table: Buffer,
    mappings: usize,
    /// The peer's table.
    peer_table: Piece,
    peer_target: usize,
    pub(super) peer_mappings: usize,
    swap: bool,

    /// The peer's hello has arrived.
    pub(super) up: bool,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) failed: bool,
    /// It has failed, and the socket does not know yet.
    pub(super) has_just_failed: bool,
    /// When a look first found no traffic since the look before.
    idle_since: Option<Instant>,
}

// SAFETY: verbs check the handles.
unsafe impl Send for Stream {}

impl Stream {
    /// Makes the queue pair of an id, and everything else that a stream needs.
    pub(super) fn new(id: *mut rdma_cm_id, sizes: Sizes) -> Result<Stream> {
        // SAFETY: the socket's own id, bound to a card.
        let (context, pd) = unsafe { ((*id).verbs, (*id).pd) };
        let entries = (sizes.send_queue + sizes.recv_queue) as c_int;
        let queues = Queues::new(context, entries)?;
        let Queues { cq, events } = queues;
        // SAFETY: the channel was just made.
        let comp_fd = unsafe { (*events).fd };
        set_nonblocking(comp_fd)?;
        let [send, recv, table] = buffers_of(pd, sizes)?;
        let mut init = queue_pair_of(cq, sizes);
        // SAFETY: the attributes live through the call.
        Errno::check(unsafe { queue_pair::rdma_create_qp(id, pd, &mut init) })?;
        // SAFETY: the socket's own id, which has a queue pair now.
        let qp = unsafe { (*id).qp };
        std::mem::forget(queues);
        let half = recv.len() / 2;
        let (send_room, inline) = (send.len(), init.cap.max_inline_data.min(sizes.inline));
        let mut stream = Stream {
            id,
            qp,
            cq,
            events,
            comp_fd,
            armed: false,
            sizes,
            inline,
            send,
            send_at: 0,
            send_room,
            requests_room: sizes.send_queue - CONTROLS,
            controls_room: CONTROLS,
            sent: 0,
            may_send: 0,
            target: 0,
            recv,
            recv_at: 0,
            recv_free: half,
            recv_free_at: half,
            read: 0,
            credits_due_at: (sizes.recv_queue / 2) as u16,
            arrived: VecDeque::new(),
            table,
            mappings: sizes.mappings,
            peer_table: Piece::default(),
            peer_target: 1,
            peer_mappings: 0,
            swap: false,
            up: false,
            readable: true,
            writable: true,
            failed: false,
            has_just_failed: false,
            idle_since: None,
        };
        (0..sizes.recv_queue).try_for_each(|_| stream.post_recv())?;
        Ok(stream)
    }

    /// What the peer is told of this side's memory.
    pub(super) fn hello(&self) -> Hello {
        Hello {
            big_endian: wire::OURS_IS_BIG_ENDIAN,
            mappings: self.mappings as u8,
            credits: self.sizes.recv_queue as u16,
            table: Piece {
                addr: self.table.addr(),
                key: self.table.keys().1,
                length: wire::TARGETS as u32,
            },
            buffer: Piece {
                addr: self.recv.addr(),
                key: self.recv.keys().1,
                length: (self.recv.len() / 2) as u32,
            },
        }
    }

    /// Takes the peer's description of its memory; data can be sent from here on.
    pub(super) fn meet(&mut self, peer: &Hello) {
        self.swap = peer.big_endian != wire::OURS_IS_BIG_ENDIAN;
        self.peer_table = peer.table;
        self.peer_mappings = peer.mappings.into();
        self.may_send = peer.credits;
        self.peer_target = 1 % peer.table.length.max(1) as usize;
        self.set_target(0, peer.buffer);
        self.up = true;
    }

    fn target(&self, at: usize) -> Piece {
        // SAFETY: an entry of the table, which the peer may be writing, so it is read once.
        unsafe { self.table.byte(at * wire::PIECE).cast::<Piece>().read_volatile() }
    }

    fn set_target(&mut self, at: usize, piece: Piece) {
        // SAFETY: an entry of the table.
        unsafe { self.table.byte(at * wire::PIECE).cast::<Piece>().write_volatile(piece) };
    }

    fn post_recv(&mut self) -> Result<()> {
        let mut request = ibv_recv_wr { wr_id: RECV, ..ibv_recv_wr::zeroed() };
        let mut bad = ptr::null_mut();
        // SAFETY: the request lives through the call, and refers to no memory.
        Errno::check(unsafe { recv::post_recv(self.qp, &mut request, &mut bad) })
    }

    /// Posts a write of `pieces` of this side's memory, with or without a message.
    fn post_write(
        &mut self,
        pieces: &mut [ibv_sge],
        message: u32,
        (to, key): (u64, u32),
        flags: ibv_send_flags,
    ) -> Result<()> {
        let (operation, _) = wire::split(message);
        let silent = operation == wire::OP_WRITE;
        let mut request = ibv_send_wr {
            wr_id: message.into(),
            sg_list: pieces.as_mut_ptr(),
            num_sge: pieces.len() as c_int,
            opcode: if silent { IBV_WR_RDMA_WRITE } else { IBV_WR_RDMA_WRITE_WITH_IMM },
            send_flags: flags,
            imm: ibv_send_wr_imm { imm_data: message.to_be() },
            wr: ibv_send_wr_wr { rdma: ibv_send_wr_wr_rdma { remote_addr: to, rkey: key } },
            ..ibv_send_wr::zeroed()
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the request and its pieces live through the call; the memory of the pieces stays
        // until the completion.
        Errno::check(unsafe { post::post_send(self.qp, &mut request, &mut bad) })
    }

    /// Says that data was written, although none was: what a peer may do that does not keep the
    /// protocol.
    #[cfg(test)]
    pub(super) fn pretend_to_send(&mut self, length: u32) -> Result<()> {
        self.post_write(&mut [], wire::message(wire::OP_DATA, length), (0, 0), 0)?;
        self.requests_room -= 1;
        self.send_room -= length as usize;
        Ok(())
    }

    /// Handles completions, and gives the peer credits if they are due.
    pub(super) fn progress(&mut self) {
        let mut done = [ibv_wc::zeroed(); BATCH];
        loop {
            // SAFETY: the stream's own queue, and as many entries as the call is told.
            let count = unsafe { poll::poll_cq(self.cq, BATCH as c_int, done.as_mut_ptr()) };
            let Ok(count) = usize::try_from(count) else { return self.fail() };
            for wc in done.iter().take(count) {
                self.on_completion(wc);
            }
            if count > 0 {
                self.idle_since = None;
            }
            if count < BATCH {
                break;
            }
        }
        self.give_due_credits();
    }

    /// Asks whether the peer is still there, after this long without traffic: a write without data
    /// fails if it is not. The peer learns nothing of it.
    pub(super) fn keep_alive(&mut self, idle: Duration) {
        let now = Instant::now();
        let idle_for = now - *self.idle_since.get_or_insert(now);
        let can_ask = self.up && self.writable && !self.failed && self.requests_room > 0;
        if idle_for < idle || !can_ask {
            return;
        }
        self.idle_since = None;
        match self.post_write(&mut [], wire::message(wire::OP_WRITE, 0), (0, 0), 0) {
            Ok(()) => self.requests_room -= 1,
            Err(_) => self.fail(),
        }
    }

    fn fail(&mut self) {
        self.has_just_failed |= !self.failed;
        self.failed = true;
    }

    fn on_completion(&mut self, wc: &ibv_wc) {
        let success = wc.status == IBV_WC_SUCCESS;
        if !success && !self.failed && wc.status != IBV_WC_WR_FLUSH_ERR {
            tracing::debug!(status = wc.status, "a stream has failed");
        }
        if !success {
            self.fail();
        }
        if wc.wr_id & RECV != 0 {
            if success {
                // SAFETY: every message has immediate data.
                let message = u32::from_be(unsafe { wc.imm.imm_data });
                self.on_message(message);
                if self.post_recv().is_err() {
                    self.fail();
                }
            }
            return;
        }
        let (operation, data) = wire::split(wc.wr_id as u32);
        match operation {
            wire::OP_CREDITS | wire::OP_CONTROL => self.controls_room += 1,
            wire::OP_MAP => {
                self.requests_room += 1;
                self.send_room += wire::MAPPING;
            }
            _ => {
                self.requests_room += 1;
                self.send_room += data as usize;
            }
        }
    }

    fn on_message(&mut self, message: u32) {
        match wire::split(message) {
            (wire::OP_CREDITS, number) => self.may_send = number as u16,
            (wire::OP_MAP, _) => {}
            (wire::OP_CONTROL, wire::CONTROL_DISCONNECT) => {
                self.readable = false;
                self.writable = false;
            }
            (wire::OP_CONTROL, wire::CONTROL_SHUTDOWN) => self.readable = false,
            (wire::OP_CONTROL, _) => {}
            (wire::OP_DATA, length) => self.on_data(length as usize),
            (other, _) => tracing::debug!(other, "a message of an unknown kind"),
        }
    }

    /// Notes data that has arrived. A message without any uses up a credit like others; to keep it
    /// would look like the end of the stream.
    fn on_data(&mut self, length: usize) {
        let most = self.recv.len();
        if length > most || self.arrived.len() >= self.sizes.recv_queue as usize {
            tracing::warn!(length, "a stream fails: its peer has sent more than it may");
            return self.fail();
        }
        match length {
            0 => self.read = self.read.wrapping_add(1),
            length => self.arrived.push_back(length),
        }
    }

    fn credits_are_due(&self) -> bool {
        self.recv_free >= self.recv.len() / 2
            || (self.read.wrapping_sub(self.credits_due_at) as i16) >= 0
    }

    /// Tells the peer how many messages it may send, and which half of the buffer is free again.
    fn give_credits(&mut self) {
        self.credits_due_at = self.read.wrapping_add((self.sizes.recv_queue / 2) as u16);
        let number = self.read.wrapping_add(self.sizes.recv_queue as u16);
        let message = wire::message(wire::OP_CREDITS, number.into());
        let half = self.recv.len() / 2;
        let posted = if self.recv_free >= half {
            let piece = Piece {
                addr: self.recv.addr() + self.recv_free_at as u64,
                key: self.recv.keys().1,
                length: half as u32,
            };
            let mut piece = if self.swap { wire::swapped(piece) } else { piece };
            self.recv_free -= half;
            self.recv_free_at = (self.recv_free_at + half) % (2 * half);
            let to = self.peer_table.addr + (self.peer_target * wire::PIECE) as u64;
            self.peer_target = (self.peer_target + 1) % self.peer_table.length.max(1) as usize;
            let at = &raw mut piece as u64;
            let mut sges = [ibv_sge { addr: at, length: wire::PIECE as u32, lkey: 0 }];
            self.post_write(&mut sges, message, (to, self.peer_table.key), IBV_SEND_INLINE)
        } else {
            self.post_write(&mut [], message, (0, 0), 0)
        };
        match posted {
            Ok(()) => self.controls_room -= 1,
            Err(_) => self.fail(),
        }
    }

    /// Is there data to read?
    pub(super) fn has_data(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Has the peer ended its data, and is all of it read?
    pub(super) fn is_at_end(&self) -> bool {
        !self.has_data() && (!self.readable || self.failed)
    }

    /// Copies data to the buffers, and consumes it unless `peek`.
    pub(super) fn read(&mut self, buffers: &[libc::iovec], peek: bool) -> usize {
        let (mut at, mut done) = (self.recv_at, 0);
        // Messages that are read completely, and bytes read of the one after them.
        let (mut whole, mut within) = (0, 0);
        'all: for buffer in buffers {
            let mut filled = 0;
            while filled < buffer.iov_len {
                let Some(length) = self.arrived.get(whole).copied() else { break 'all };
                let part = (length - within).min(buffer.iov_len - filled);
                let part = part.min(self.recv.len() - at);
                let to = buffer.iov_base.cast::<u8>().wrapping_add(filled);
                // SAFETY: the caller's buffer has room. The other range is in the receive buffer,
                // where a peer that keeps the protocol does not write now; one that does not keep
                // it spoils its own data only.
                unsafe { ptr::copy_nonoverlapping(self.recv.byte(at), to, part) };
                at = (at + part) % self.recv.len();
                (filled, within, done) = (filled + part, within + part, done + part);
                if within == length {
                    (whole, within) = (whole + 1, 0);
                }
            }
        }
        if peek {
            return done;
        }
        self.arrived.drain(..whole);
        if let Some(first) = self.arrived.front_mut() {
            *first -= within;
        }
        self.read = self.read.wrapping_add(whole as u16);
        self.recv_at = at;
        self.recv_free += done;
        self.give_due_credits();
        done
    }

    fn give_due_credits(&mut self) {
        // A peer that has closed its end sends no more, and may be gone: an answer would only hold
        // up this end's close until its last retry.
        let ended = !self.readable && !self.writable;
        let room = self.up && !self.failed && !ended && self.controls_room > 0;
        if room && self.credits_are_due() {
            self.give_credits();
        }
    }

    /// Can data be sent now?
    pub(super) fn can_send(&self) -> bool {
        self.up
            && self.requests_room > 0
            && self.sent != self.may_send
            && self.send_room >= LOW_WATER.min(self.send.len() / 2)
            && self.next_target().length > 0
    }

    fn next_target(&self) -> Piece {
        self.target(self.target)
    }

    /// Copies `from` into the send buffer; returns the pieces of memory that hold it.
    fn stage(&mut self, from: &[u8]) -> ([ibv_sge; 2], usize) {
        let first = from.len().min(self.send.len() - self.send_at);
        let lkey = self.send.keys().0;
        let mut pieces = [ibv_sge::zeroed(); 2];
        let mut count = 0;
        let (head, tail) = from.split_at(first);
        for (part, at) in [(head, self.send_at), (tail, 0)] {
            if part.is_empty() {
                continue;
            }
            // SAFETY: the buffer has room for all of `from`, and bytes in use lie elsewhere.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), self.send.byte(at), part.len()) };
            let addr = self.send.addr() + at as u64;
            pieces[count] = ibv_sge { addr, length: part.len() as u32, lkey };
            count += 1;
        }
        self.send_at = (self.send_at + from.len()) % self.send.len();
        self.send_room -= from.len();
        self.requests_room -= 1;
        (pieces, count)
    }

    fn flags(&self, len: usize) -> ibv_send_flags {
        if len <= self.inline as usize { IBV_SEND_INLINE } else { 0 }
    }

    /// Sends the beginning of `data` and returns its length; `so_far` is what the same call has
    /// sent before. Call it only if [`Stream::can_send`].
    pub(super) fn write(&mut self, data: &[u8], so_far: usize) -> Result<usize> {
        let mut target = self.next_target();
        let step = (FIRST_TRANSFER + so_far).next_power_of_two().min(MAX_TRANSFER);
        let len = data.len().min(step).min(self.send_room).min(target.length as usize);
        let (mut pieces, count) = self.stage(&data[..len]);
        let to = (target.addr, target.key);
        target.addr += len as u64;
        target.length -= len as u32;
        self.set_target(self.target, target);
        if target.length == 0 {
            self.target = (self.target + 1) % wire::TARGETS;
        }
        self.sent = self.sent.wrapping_add(1);
        let message = wire::message(wire::OP_DATA, len as u32);
        self.post_write(&mut pieces[..count], message, to, self.flags(len))?;
        Ok(len)
    }

    /// Tells the peer that no more data will come, or that the connection ends.
    pub(super) fn say(&mut self, control: u32) -> Result<()> {
        self.controls_room = self.controls_room.checked_sub(1).ok_or(Errno(libc::EAGAIN))?;
        self.post_write(&mut [], wire::message(wire::OP_CONTROL, control), (0, 0), 0)
    }

    pub(super) fn can_say(&self) -> bool {
        self.controls_room > 0
    }

    /// Has the peer acknowledged everything that was sent?
    pub(super) fn all_sent(&self) -> bool {
        self.requests_room == self.sizes.send_queue - CONTROLS && self.controls_room == CONTROLS
    }

    /// Is there room for a message about a mapping?
    pub(super) fn can_map(&self) -> bool {
        self.up && self.requests_room > 0 && self.send_room >= wire::MAPPING
    }

    /// Tells the peer of a mapped buffer: writes entry `at` of the peer's table.
    pub(super) fn tell_mapping(&mut self, at: usize, mapping: Mapping) -> Result<()> {
        let swap =
            |m: Mapping| Mapping { offset: m.offset.swap_bytes(), piece: wire::swapped(m.piece) };
        let mapping = if self.swap { swap(mapping) } else { mapping };
        let mut bytes = [0; wire::MAPPING];
        bytes[..8].copy_from_slice(&mapping.offset.to_ne_bytes());
        bytes[8..16].copy_from_slice(&mapping.piece.addr.to_ne_bytes());
        bytes[16..20].copy_from_slice(&mapping.piece.key.to_ne_bytes());
        bytes[20..24].copy_from_slice(&mapping.piece.length.to_ne_bytes());
        let to = self.peer_table.addr
            + u64::from(self.peer_table.length) * wire::PIECE as u64
            + (at * wire::MAPPING) as u64;
        let (mut pieces, count) = self.stage(&bytes);
        let message = wire::message(wire::OP_MAP, 0);
        let flags = self.flags(bytes.len());
        self.post_write(&mut pieces[..count], message, (to, self.peer_table.key), flags)
    }

    /// The mapped buffer of the peer that holds `offset`.
    pub(super) fn peer_mapping(&self, offset: u64) -> Option<Mapping> {
        let entry = |at: usize| {
            let at = wire::TARGETS * wire::PIECE + at * wire::MAPPING;
            // SAFETY: an entry of the table, which the peer may be writing, so it is read once.
            unsafe { self.table.byte(at).cast::<Mapping>().read_volatile() }
        };
        (0..self.mappings)
            .map(entry)
            .find(|m| m.offset <= offset && offset - m.offset < u64::from(m.piece.length))
    }

    /// Writes the beginning of `data` into a mapped buffer of the peer; returns its length.
    pub(super) fn write_mapped(&mut self, data: &[u8], offset: u64) -> Result<usize> {
        let mapping = self.peer_mapping(offset).ok_or(EINVAL)?;
        let skip = offset - mapping.offset;
        let room = u64::from(mapping.piece.length) - skip;
        let len = data.len().min(MAX_TRANSFER).min(self.send_room).min(room as usize);
        let (mut pieces, count) = self.stage(&data[..len]);
        let message = wire::message(wire::OP_WRITE, len as u32);
        let to = (mapping.piece.addr.wrapping_add(skip), mapping.piece.key);
        self.post_write(&mut pieces[..count], message, to, self.flags(len))?;
        Ok(len)
    }

    /// Is there room for a write into a mapped buffer?
    pub(super) fn can_write_mapped(&self) -> bool {
        self.up && self.requests_room > 0 && self.send_room >= LOW_WATER.min(self.send.len() / 2)
    }

    /// Arms the completion channel for the next completion; returns whether it has taken an event.
    /// The caller must then check once more for completions that came before.
    pub(super) fn arm(&mut self) -> bool {
        let taken = self.take_events();
        if !self.armed {
            // SAFETY: the stream's own queue.
            if unsafe { cq::req_notify_cq(self.cq, 0) } != 0 {
                self.fail();
            }
            self.armed = true;
        }
        taken
    }

    /// Takes the events of the completion channel, if there are any.
    fn take_events(&mut self) -> bool {
        let mut taken = false;
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the stream's own channel, and room for the results. It does not block.
        while unsafe { channel::get_cq_event(self.events, &mut cq, &mut context) } == 0 {
            channel::ack_cq_events(cq, 1);
            (self.armed, taken) = (false, true);
        }
        taken
    }

    /// The protection domain, to which buffers that the program maps belong too.
    pub(super) fn pd(&self) -> *mut ibv_pd {
        // SAFETY: the socket's own id.
        unsafe { (*self.id).pd }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        queue_pair::rdma_destroy_qp(self.id);
        drop(Queues { cq: self.cq, events: self.events });
    }
}

/// A completion queue and its channel, destroyed on drop.
struct Queues {
    cq: *mut ibv_cq,
    events: *mut ibv_comp_channel,
}

impl Queues {
    fn new(context: *mut ibv_context, entries: c_int) -> Result<Queues> {
        let events = channel::create_comp_channel(context);
        if events.is_null() {
            return Err(Errno::last());
        }
        let cq = cq::create_cq(context, entries, ptr::null_mut(), events, 0);
        if cq.is_null() {
            let error = Errno::last();
            channel::destroy_comp_channel(events);
            return Err(error);
        }
        Ok(Queues { cq, events })
    }
}

/// The buffers of a stream: for what it sends, for what it receives, and for its table.
fn buffers_of(pd: *mut ibv_pd, sizes: Sizes) -> Result<[Buffer; 3]> {
    let write = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    let table_len = wire::TARGETS * wire::PIECE + sizes.mappings * wire::MAPPING;
    Ok([
        Buffer::new(pd, sizes.send_buffer, IBV_ACCESS_LOCAL_WRITE)?,
        Buffer::new(pd, sizes.recv_buffer, write)?,
        Buffer::new(pd, table_len, write)?,
    ])
}

/// The attributes of a stream's queue pair.
fn queue_pair_of(cq: *mut ibv_cq, sizes: Sizes) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        send_cq: cq,
        recv_cq: cq,
        cap: ibv_qp_cap {
            max_send_wr: sizes.send_queue,
            max_recv_wr: sizes.recv_queue,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: sizes.inline,
        },
        qp_type: IBV_QPT_RC,
        sq_sig_all: 1,
        ..ibv_qp_init_attr::zeroed()
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        cq::destroy_cq(self.cq);
        channel::destroy_comp_channel(self.events);
    }
}

pub(super) fn set_nonblocking(fd: c_int) -> Result<()> {
    // SAFETY: passes no pointers.
    let set = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    Errno::check(set)
}

const _: () = assert!(size_of::<Piece>() == 16 && size_of::<Mapping>() == 24);
