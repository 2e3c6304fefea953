//! The state of an rsocket, and the way in which calls wait for a change of it.

use core::ffi::c_int;
use std::collections::HashMap;
use std::mem;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::bell::{Bell, Bells};
use super::datagram::Datagram;
use super::map::Map;
use super::options::Options;
use super::stream::{Stream, set_nonblocking};
use super::wire::{HELLO, Hello};
use crate::abi::rdma_cma::*;
use crate::process;
use crate::rdmacm::objects::EventChannel;
use crate::rdmacm::{EINVAL, Errno, NOT_YET, Result, connect, events};
use crate::sleep::{OnSignal, readable, sleep};

/// How long a call polls before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// The longest sleep: calls look now and then whether their thread is cancelled, and at the clock
/// for `SO_KEEPALIVE`. Tests sleep without end, so that what does not wake a call shows.
pub(super) const SLEEP_MS: c_int = if cfg!(test) { c_int::MAX } else { 100 };

/// The phase of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Idle,
    Bound,
    Listening,
    /// The connection request was sent.
    Connecting,
    /// Data may flow.
    Open,
    /// The connection failed.
    Failed,
}

/// A socket.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) fd: c_int,
    /// A datagram socket, not a stream.
    pub(super) datagram: bool,
    inner: Mutex<Inner>,
}

/// The state of a socket that changes, under its lock.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) options: Options,
    pub(super) phase: Phase,
    pub(super) id: *mut rdma_cm_id,
    pub(super) channel: *mut rdma_event_channel,
    /// The channel itself.
    pub(super) news: Option<Arc<EventChannel>>,
    pub(super) stream: Option<Stream>,
    pub(super) datagram: Option<Datagram>,
    /// For `SO_ERROR`.
    pub(super) error: c_int,
    pub(super) maps: Vec<Map>,
    /// Those of the calls that sleep.
    pub(super) bells: Bells,
}

// SAFETY: the pointers are handles, which each call looks up before it uses them.
unsafe impl Send for Inner {}

/// The sockets of a process, by descriptor.
#[derive(Debug, Default)]
struct Sockets {
    all: Mutex<HashMap<c_int, Arc<Socket>>>,
}

pub(super) fn find(fd: c_int) -> Result<Arc<Socket>> {
    look(fd).ok_or(Errno(libc::EBADF))
}

/// The socket of a descriptor, if it is an rsocket.
pub(super) fn look(fd: c_int) -> Option<Arc<Socket>> {
    let sockets = process::current().shared::<Sockets>();
    let all = sockets.all.lock().unwrap_or_else(PoisonError::into_inner);
    all.get(&fd).cloned()
}

fn insert(socket: Socket) -> c_int {
    let fd = socket.fd;
    let sockets = process::current().shared::<Sockets>();
    let mut all = sockets.all.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(fd, Arc::new(socket));
    fd
}

/// Removes a socket from the table.
pub(super) fn remove(fd: c_int) -> Result<Arc<Socket>> {
    let sockets = process::current().shared::<Sockets>();
    let mut all = sockets.all.lock().unwrap_or_else(PoisonError::into_inner);
    all.remove(&fd).ok_or(Errno(libc::EBADF))
}

/// Makes a channel that does not block.
fn new_channel() -> Result<*mut rdma_event_channel> {
    let channel = connect::rdma_create_event_channel();
    if channel.is_null() {
        return Err(Errno::last());
    }
    // SAFETY: the channel was just made.
    set_nonblocking(unsafe { (*channel).fd })?;
    Ok(channel)
}

fn with_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel, options: Options) -> Socket {
    Socket {
        // SAFETY: the socket's own channel.
        fd: unsafe { (*channel).fd },
        datagram: false,
        inner: Mutex::new(Inner {
            options,
            phase: Phase::Idle,
            id,
            channel,
            news: EventChannel::find(channel).ok(),
            stream: None,
            datagram: None,
            error: 0,
            maps: Vec::new(),
            bells: Bells::default(),
        }),
    }
}

/// Makes a stream socket.
pub(super) fn create_stream() -> Result<c_int> {
    let channel = new_channel()?;
    let mut id = ptr::null_mut();
    // SAFETY: `id` has room for the handle.
    let made = unsafe { connect::rdma_create_id(channel, &mut id, ptr::null_mut(), RDMA_PS_TCP) };
    if let Err(error) = Errno::check(made) {
        connect::rdma_destroy_event_channel(channel);
        return Err(error);
    }
    Ok(insert(with_id(id, channel, Options::default())))
}

/// Makes a datagram socket around a UDP socket of the kernel.
pub(super) fn create_datagram(fd: c_int) -> c_int {
    insert(Socket {
        fd,
        datagram: true,
        inner: Mutex::new(Inner {
            options: Options::default(),
            phase: Phase::Open,
            id: ptr::null_mut(),
            channel: ptr::null_mut(),
            news: None,
            stream: None,
            datagram: Some(Datagram::new(fd)),
            error: 0,
            maps: Vec::new(),
            bells: Bells::default(),
        }),
    })
}

/// Makes the socket of a request that was accepted on `listener`.
pub(super) fn accept(listener: &Inner, request: *mut rdma_cm_event) -> Result<c_int> {
    // SAFETY: the event was just fetched, with its id and private data.
    let (id, hello) = unsafe {
        let param = (*request).param.conn;
        let data = connect::read_data(param.private_data, param.private_data_len, 255)?;
        ((*request).id, Hello::parse(&data))
    };
    let refuse = |error| {
        // SAFETY: passes no private data.
        unsafe { connect::rdma_reject(id, ptr::null(), 0) };
        events::rdma_ack_cm_event(request);
        connect::rdma_destroy_id(id);
        Err(error)
    };
    let Some(hello) = hello else { return refuse(EINVAL) };
    let channel = match new_channel() {
        Ok(channel) => channel,
        Err(error) => return refuse(error),
    };
    let moved = Errno::check(connect::rdma_migrate_id(id, channel));
    let mut options = listener.options;
    options.nonblocking = false;
    let made = moved.and_then(|()| Stream::new(id, options.sizes)).and_then(|mut stream| {
        stream.meet(&hello);
        let ours = stream.hello().emit();
        let mut param = conn_param(&ours);
        // SAFETY: the parameters live through the call.
        Errno::check(unsafe { connect::rdma_accept(id, &mut param) })?;
        Ok(stream)
    });
    let stream = match made {
        Ok(stream) => stream,
        Err(error) => {
            let refused = refuse(error);
            connect::rdma_destroy_event_channel(channel);
            return refused;
        }
    };
    events::rdma_ack_cm_event(request);
    let socket = with_id(id, channel, options);
    {
        let mut inner = socket.lock();
        inner.stream = Some(stream);
        inner.phase = Phase::Open;
    }
    Ok(insert(socket))
}

/// The parameters of a connection that carries a stream.
pub(super) fn conn_param(hello: &[u8; HELLO]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: hello.as_ptr().cast(),
        private_data_len: HELLO as u8,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        ..rdma_conn_param::zeroed()
    }
}

impl Inner {
    /// Is there an event of the id?
    pub(super) fn has_news(&self) -> bool {
        self.news.as_ref().is_some_and(|news| !news.is_empty())
    }

    /// Takes the next event of the id, if there is one.
    pub(super) fn next_event(&mut self) -> Option<*mut rdma_cm_event> {
        // Most calls find no event, and should cost little.
        if !self.has_news() {
            return None;
        }
        let mut event = ptr::null_mut();
        // SAFETY: `event` has room for the handle; the channel does not block.
        let got = unsafe { events::rdma_get_cm_event(self.channel, &mut event) };
        (got == 0).then_some(event)
    }

    /// Handles events of the connection, and of data.
    pub(super) fn progress(&mut self) {
        if let Some(datagram) = &mut self.datagram {
            if datagram.progress(self.options.sizes) {
                self.bells.ring();
            }
            return;
        }
        if self.phase == Phase::Listening || self.channel.is_null() {
            return;
        }
        if let Some(stream) = &mut self.stream {
            stream.progress();
            if self.options.keepalive != 0 {
                let idle = u64::try_from(self.options.keepalive_time).unwrap_or(0);
                stream.keep_alive(Duration::from_secs(idle));
            }
            if mem::take(&mut stream.has_just_failed) {
                self.error = libc::ECONNRESET;
            }
        }
        while let Some(event) = self.next_event() {
            self.on_event(event);
            events::rdma_ack_cm_event(event);
            self.bells.ring();
        }
    }

    fn on_event(&mut self, event: *mut rdma_cm_event) {
        // SAFETY: the event was just fetched.
        let (kind, status, param) =
            unsafe { ((*event).event, (*event).status, (*event).param.conn) };
        match (kind, self.phase) {
            (RDMA_CM_EVENT_ESTABLISHED, Phase::Connecting) => {
                // SAFETY: the event's own private data.
                let data =
                    unsafe { connect::read_data(param.private_data, param.private_data_len, 255) };
                let hello = data.ok().and_then(|data| Hello::parse(&data));
                match (hello, &mut self.stream) {
                    (Some(hello), Some(stream)) => {
                        stream.meet(&hello);
                        self.phase = Phase::Open;
                    }
                    // The peer does not speak this protocol.
                    _ => self.give_up(libc::EPROTO),
                }
            }
            (RDMA_CM_EVENT_REJECTED, _) => self.give_up(libc::ECONNREFUSED),
            (RDMA_CM_EVENT_UNREACHABLE, _) => self.give_up(libc::ETIMEDOUT),
            (RDMA_CM_EVENT_CONNECT_ERROR, _) => self.give_up(status.abs().max(1)),
            (RDMA_CM_EVENT_DISCONNECTED, _) => {
                if let Some(stream) = &mut self.stream {
                    // Data that came before the end can still be read.
                    stream.progress();
                    stream.readable = false;
                    stream.writable = false;
                }
            }
            _ => {}
        }
    }

    fn give_up(&mut self, error: c_int) {
        self.error = error;
        self.phase = Phase::Failed;
    }

    /// The stream, if the socket is or was connected.
    pub(super) fn stream(&mut self) -> Result<&mut Stream> {
        let phase = self.phase;
        match &mut self.stream {
            Some(stream) if phase == Phase::Open => Ok(stream),
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// The state of a datagram socket.
    pub(super) fn datagram(&mut self) -> Result<&mut Datagram> {
        self.datagram.as_mut().ok_or(EINVAL)
    }

    /// Makes the descriptors readable at the next change. Events that came before are taken, and
    /// the calls that sleep on the descriptors woken.
    pub(super) fn arm(&mut self) {
        let taken = match (&mut self.datagram, &mut self.stream) {
            (Some(datagram), _) => datagram.arm(),
            (_, Some(stream)) => stream.arm(),
            _ => false,
        };
        if taken {
            self.bells.ring();
        }
        self.progress();
    }

    /// The descriptors that change when the socket does.
    pub(super) fn descriptors(&self) -> Vec<libc::pollfd> {
        if let Some(datagram) = &self.datagram {
            return datagram.descriptors().map(readable).collect();
        }
        // A closed socket has none: another thread may have found it just before.
        let mut all = Vec::new();
        if !self.channel.is_null() {
            // SAFETY: the socket's own channel.
            all.push(readable(unsafe { (*self.channel).fd }));
        }
        all.extend(self.stream.as_ref().map(|stream| readable(stream.comp_fd)));
        all
    }
}

impl Socket {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready`; with `at_once`, fails with `EAGAIN` instead of waiting. A call that a
    /// signal may end fails with `NOT_YET` now and then.
    pub(super) fn wait<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        at_once: bool,
        on_signal: OnSignal,
        mut ready: impl FnMut(&mut Inner) -> bool,
    ) -> Result<MutexGuard<'a, Inner>> {
        let mut spin_until = None;
        loop {
            inner.progress();
            if ready(&mut inner) {
                return Ok(inner);
            }
            if at_once {
                return Err(Errno(libc::EAGAIN));
            }
            let now = Instant::now();
            if now < *spin_until.get_or_insert(now + SPIN) {
                continue;
            }
            inner.arm();
            if ready(&mut inner) {
                return Ok(inner);
            }
            let bell = Bell::new();
            inner.bells.hang(&bell);
            let fds = inner.descriptors().into_iter().chain(bell.entry()).collect();
            drop(inner);
            if !sleep(fds, SLEEP_MS, on_signal)? && on_signal != OnSignal::GoOn {
                return Err(NOT_YET);
            }
            inner = self.lock();
        }
    }
}
