//! Descriptors that clients send: they are looked at before the daemon uses or closes them.
//!
//! To look at a file, or only to close it, may be a request to the file's server: where that is a
//! program (FUSE), `close` waits for its answer to FLUSH, and `fstatfs` for one to STATFS. A client
//! may be that program, and never answer. The end of a socket, too, may wait until its last bytes
//! have arrived (`SO_LINGER`), and that of a pipe for a process in the middle of a write. So the
//! thread that serves clients touches only memory files. If others come, another thread looks at
//! them, one for each user at a time, and their client is not served meanwhile. Behind that look
//! each of them is a regular file of a local file system or of `/proc`, or has become a name
//! (`O_PATH`).
//!
//! What comes and is not looked at is closed by threads of its own ([`Closers`]).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use rustix::fs::{FileType, FsWord, Mode, OFlags, fcntl_get_seals, fcntl_getfl, fstatfs, open};

use crate::closer::Closer;
use crate::event::Event;
use crate::threads::without_signals;

/// Messages of a user that may wait for a look, beside the one that is under way.
const WAITING: usize = 64;
/// The most users who have a thread of their own that closes.
const CLOSERS: usize = 64;
/// File systems whose requests the kernel itself answers: ext2 to ext4, XFS, Btrfs, F2FS, ZFS, and
/// files in memory.
const LOCAL: [FsWord; 6] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x2fc1_2fc1, 0x0102_1994];
/// `/proc`.
const PROC: FsWord = 0x9fa0;

/// A message whose descriptors are not plain, or for which something is to be done before.
pub(super) struct Parcel {
    pub(super) client: u32,
    pub(super) uid: u32,
    pub(super) message: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
    pub(super) work: Option<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for Parcel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} descriptors of client {}", self.descriptors.len(), self.client)
    }
}

/// What a look has ended with.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) parcel: Parcel,
    /// Clients of the user that were not served, because too many messages waited.
    pub(super) had_no_room: Vec<u32>,
    /// Clients whose messages are lost, since the system has no thread to look at them.
    pub(super) lost: Vec<u32>,
}

/// The looks that are under way, and what waits for one.
#[derive(Debug)]
pub(super) struct Looks {
    /// The users for whom a thread looks.
    users: BTreeMap<u32, Waiting>,
    sender: Sender<Parcel>,
    done: Receiver<Parcel>,
    /// Notified when a look has ended.
    pub(super) event: Arc<Event>,
}

#[derive(Debug, Default)]
struct Waiting {
    parcels: VecDeque<Parcel>,
    without_room: Vec<u32>,
}

impl Looks {
    pub(super) fn new() -> io::Result<Looks> {
        let (sender, done) = mpsc::channel();
        Ok(Looks { users: BTreeMap::new(), sender, done, event: Arc::new(Event::new()?) })
    }

    /// Has a user as many messages waiting as may be? Then the client is remembered: see
    /// [`Looked::had_no_room`].
    pub(super) fn is_full_for(&mut self, uid: u32, client: u32) -> bool {
        let waiting = self.users.get_mut(&uid).filter(|user| user.parcels.len() >= WAITING);
        waiting.is_some_and(|user| {
            user.without_room.push(client);
            true
        })
    }

    /// Has a message looked at.
    ///
    /// # Errors
    /// The client's number: the system has no thread for that, and the message is lost.
    pub(super) fn add(&mut self, parcel: Parcel) -> Result<(), u32> {
        match self.users.entry(parcel.uid) {
            Entry::Occupied(user) => {
                user.into_mut().parcels.push_back(parcel);
                Ok(())
            }
            Entry::Vacant(user) => {
                let uid = parcel.uid;
                user.insert(Waiting::default());
                self.start(parcel).inspect_err(|_| {
                    self.users.remove(&uid);
                })
            }
        }
    }

    /// A message that was looked at. The user's next one is, from now on.
    pub(super) fn next(&mut self) -> Option<Looked> {
        self.next_with(Looks::start)
    }

    fn next_with(&mut self, start: impl Fn(&Looks, Parcel) -> Result<(), u32>) -> Option<Looked> {
        let parcel = self.done.try_recv().ok()?;
        let Some(user) = self.users.get_mut(&parcel.uid) else {
            return Some(Looked { parcel, had_no_room: Vec::new(), lost: Vec::new() });
        };
        let had_no_room = std::mem::take(&mut user.without_room);
        // All that wait are lost where no thread can be started: nobody would come back to them.
        let (mut lost, mut parcels) = (Vec::new(), std::mem::take(&mut user.parcels));
        while let Some(next) = parcels.pop_front() {
            match start(self, next) {
                Ok(()) => {
                    self.users.insert(parcel.uid, Waiting { parcels, ..Waiting::default() });
                    return Some(Looked { parcel, had_no_room, lost });
                }
                Err(client) => lost.push(client),
            }
        }
        self.users.remove(&parcel.uid);
        Some(Looked { parcel, had_no_room, lost })
    }

    fn start(&self, mut parcel: Parcel) -> Result<(), u32> {
        let (sender, event, client) = (self.sender.clone(), Arc::clone(&self.event), parcel.client);
        let look = move || {
            parcel.descriptors = parcel.descriptors.into_iter().filter_map(settled).collect();
            parcel.work.take().into_iter().for_each(|work| work());
            sender.send(parcel).ok();
            crate::event::wake(&event);
        };
        let thread = std::thread::Builder::new().name("remora-look".into());
        without_signals(|| thread.spawn(look)).map(drop).map_err(|error| {
            tracing::error!(%error, "no thread to look at a client’s descriptors");
            client
        })
    }
}

/// What closes connections, and what came by them: threads for which the thread that serves does
/// not wait.
#[derive(Debug, Default)]
pub(super) struct Closers {
    /// One for each user who has something closed, so that none waits for another's.
    users: BTreeMap<u32, Closer>,
    /// One for all who may not attach, and for further users.
    others: Closer,
}

impl Closers {
    /// That of a user; `None`: of somebody who may not attach.
    pub(super) fn of(&mut self, uid: Option<u32>) -> &Closer {
        self.users.retain(|_, closer| !closer.is_idle());
        match uid {
            Some(uid) if self.users.len() < CLOSERS || self.users.contains_key(&uid) => {
                self.users.entry(uid).or_default()
            }
            _ => &self.others,
        }
    }

    /// Does so much wait that no more connections should be accepted?
    pub(super) fn are_full(&self) -> bool {
        self.others.is_full() || self.users.values().any(Closer::is_full)
    }
}

/// Does the kernel alone answer for a descriptor, whatever is done with it? Only files in memory
/// have seals.
pub(super) fn is_plain(file: &OwnedFd) -> bool {
    fcntl_get_seals(file).is_ok()
}

/// Does a descriptor only name its file? It cannot be read, written or mapped. But to ask about the
/// file may be a request to the file's server, and if nobody else uses the file system, to close
/// it ends that.
pub(super) fn is_name(file: &OwnedFd) -> bool {
    fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::PATH))
}

/// Is a descriptor of a local file system? Another file system's server may be asked.
///
/// # Errors
/// The system does not tell.
pub(super) fn is_local(file: &OwnedFd) -> io::Result<bool> {
    Ok(!is_name(file) && LOCAL.contains(&fstatfs(file)?.f_type))
}

/// Is a descriptor of `/proc`? Another file system's server may be asked.
///
/// # Errors
/// The system does not tell.
pub(super) fn is_of_proc(file: &OwnedFd) -> io::Result<bool> {
    Ok(!is_name(file) && fstatfs(file)?.f_type == PROC)
}

/// The descriptor, if the thread that serves clients may have it, or else one that only names the
/// file. That takes as long as the file's server likes.
fn settled(file: OwnedFd) -> Option<OwnedFd> {
    if is_plain(&file) || is_kernels(&file).unwrap_or(false) {
        return Some(file);
    }
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    open(same, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Is it a regular file for which the kernel answers?
fn is_kernels(file: &OwnedFd) -> io::Result<bool> {
    let is_regular =
        FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode) == FileType::RegularFile;
    Ok(is_regular && (is_local(file)? || is_of_proc(file)?))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    fn parcel(client: u32, descriptors: Vec<OwnedFd>) -> Parcel {
        Parcel { client, uid: 7, message: vec![1, 2, 3], descriptors, work: None }
    }

    #[test]
    fn what_the_kernel_answers_for_is_plain() {
        let memory = memfd_create("plain", MemfdFlags::empty()).unwrap();
        assert!(is_plain(&memory), "{memory:?}");
        let pipe = OwnedFd::from(io::pipe().unwrap().0);
        let name = open("/", OFlags::PATH, Mode::empty()).unwrap();
        let event = Event::new().unwrap().as_fd().try_clone_to_owned().unwrap();
        let socket = OwnedFd::from(UnixDatagram::unbound().unwrap());
        let file = |path| OwnedFd::from(File::open(path).unwrap());
        let files = [file("/"), file("/dev/null"), file("/proc/self/mem")];
        for other in [pipe, event, name, socket].into_iter().chain(files) {
            assert!(!is_plain(&other), "{other:?}");
        }
    }

    #[test]
    fn what_may_ask_somebody_becomes_a_name() {
        let settled = |path| settled(File::open(path).unwrap().into()).unwrap();
        assert!(!is_name(&settled("/proc/self/mem")), "the kernel answers for it");
        for other in ["/", "/dev/null", "/sys"] {
            let name = settled(other);
            assert!(is_name(&name), "{other}");
            assert!(!is_local(&name).unwrap() && !is_of_proc(&name).unwrap());
        }
    }

    #[test]
    fn a_users_messages_are_looked_at_one_behind_the_other() {
        let mut looks = Looks::new().unwrap();
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        // The first is under way, and the others wait.
        for client in 0..=WAITING as u32 {
            assert!(!looks.is_full_for(7, 1000));
            looks.add(parcel(client, vec![null(), null()])).unwrap();
        }
        assert!(looks.is_full_for(7, 1000) && !looks.is_full_for(8, 1001));
        for client in 0..=WAITING as u32 {
            let looked = loop {
                match looks.next() {
                    Some(looked) => break looked,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!((looked.parcel.client, looked.parcel.message), (client, vec![1, 2, 3]));
            assert!(looked.parcel.descriptors.iter().all(is_name));
            assert_eq!(looked.had_no_room, if client == 0 { vec![1000] } else { vec![] });
        }
        assert!(looks.users.is_empty() && looks.next().is_none());
    }

    #[test]
    fn where_no_thread_starts_all_that_wait_are_lost_and_later_ones_are_not() {
        let mut looks = Looks::new().unwrap();
        let ended = |looks: &mut Looks, start: &dyn Fn(&Looks, Parcel) -> Result<(), u32>| {
            loop {
                if let Some(looked) = looks.next_with(start) {
                    return (looked.parcel.client, looked.lost);
                }
                std::thread::yield_now();
            }
        };
        for client in [1, 2, 3] {
            looks.add(parcel(client, vec![])).unwrap();
        }
        assert_eq!(ended(&mut looks, &|_, parcel| Err(parcel.client)), (1, vec![2, 3]));
        looks.add(parcel(4, vec![])).unwrap();
        assert_eq!(ended(&mut looks, &Looks::start), (4, vec![]));
    }
}
