//! Private memory of the program, turned into memory that the card's process shares: the pages'
//! bytes move to a sealed memory file, which is mapped in their place. Atomics need that, since no
//! system call changes a word of another process in one step.
//!
//! A write by another thread between the copy and the mapping would be lost. So writers wait
//! meanwhile ([`guard`](super::guard)), where the system permits that; elsewhere memory is converted
//! only while no thread but the calling one runs code of the program, with signals blocked.
//! Children of a fork get copies of their own ([`fork`](super::fork)).

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::guard::Guard;
use crate::memory::{Buffer, memfd};
use crate::threads::without_signals;

/// The name of this library's own threads, or what it begins with. They do not write the program's
/// memory.
const OWN_THREAD: &str = "remora";

/// The name of the files that take the place of private memory, by which mappings of them are told
/// from others.
pub(super) const NAME: &str = "remora-converted";

/// Held while memory is converted, and from before a fork until it is over.
static ALONE: Mutex<()> = Mutex::new(());
/// This process, or one that has forked it, has converted memory.
static HAS_CONVERTED: AtomicBool = AtomicBool::new(false);

/// While this is held, memory is not converted, and the process does not fork.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has this process, or one that has forked it, converted memory?
pub(super) fn has_converted() -> bool {
    HAS_CONVERTED.load(Ordering::Relaxed)
}

/// Memory that was converted.
pub(super) struct Converted {
    /// The address of its first byte: that of a page.
    pub(super) start: u64,
    /// Its bytes: whole pages.
    pub(super) len: u64,
    /// The file that has them.
    pub(super) file: OwnedFd,
}

/// Converts the pages that `len` bytes from `addr` on lie in; `None` if that is not safe, or the
/// memory is not of the kind that can be.
pub(super) fn convert(addr: u64, len: u64) -> io::Result<Option<Converted>> {
    // SAFETY: passes no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64;
    let start = addr & !(page - 1);
    let Some(end) = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page)) else {
        return Ok(None);
    };
    let _alone = alone();
    HAS_CONVERTED.store(true, Ordering::Relaxed);
    match convert_pages(start, end) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        converted => converted,
    }
}

fn convert_pages(start: u64, end: u64) -> io::Result<Option<Converted>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    if !is_private(&maps, start, end) {
        return Ok(None);
    }
    let len = end - start;
    let file = memfd::sealed(NAME, len)?;
    // SAFETY: the range is mapped, as the system has just said, and the view is used here only.
    let Some(mut pages) = (unsafe { Buffer::view(start, len as usize) }) else { return Ok(None) };
    without_signals(|| {
        // From here to its end, nothing may write the pages: so nothing is allocated, either.
        let guard = hold_writers(&maps, start, len)?;
        pages.move_to(file.as_fd()).map(|()| drop(guard))
    })?;
    Ok(Some(Converted { start, len, file }))
}

/// Lets threads that write `len` bytes from `start` on wait until the guard is dropped. `maps` is
/// the system's list of mappings. Without a guard nobody writes them: no other thread of the
/// program runs.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`] if other threads run and the system does not let this
/// program hold them, or if this thread itself writes these bytes all the time.
pub(super) fn hold_writers(maps: &str, start: u64, len: u64) -> io::Result<Option<Guard>> {
    let is_alone = is_alone()?;
    if is_own(maps, start, start + len) {
        return if is_alone { Ok(None) } else { Err(io::ErrorKind::PermissionDenied.into()) };
    }
    match Guard::new(start, len) {
        Ok(guard) => Ok(Some(guard)),
        Err(_) if is_alone => Ok(None),
        Err(error) => Err(error),
    }
}

/// Does this thread itself write these pages all the time: its stack, and its variables?
fn is_own(maps: &str, start: u64, end: u64) -> bool {
    let here = 0u8;
    let stack = (&raw const here).addr() as u64;
    // SAFETY: the call returns an address that is valid for this thread.
    let errno = unsafe { libc::__errno_location() }.addr() as u64;
    [stack, errno].into_iter().any(|addr| {
        let around =
            maps.lines().filter_map(range).find(|(from, to, _)| (*from..*to).contains(&addr));
        around.is_none_or(|(from, to, _)| {
            from < end && start < to && {
                // A thread's variables may lie beside memory of the program.
                addr == stack || (start..end).contains(&addr)
            }
        })
    })
}

/// Is the calling thread the only one that runs code of the program?
fn is_alone() -> io::Result<bool> {
    let mut others = 0;
    let is_ours = |name: &str| {
        let rest = name.trim_end().strip_prefix(OWN_THREAD);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    // Threads without a name have that of the program, and may be the program's.
    let program = fs::read_to_string("/proc/self/comm")?;
    let is_program_ours = is_ours(&program);
    let first = std::process::id().to_string();
    let first = std::ffi::OsStr::new(&first);
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?;
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        // The first thread is the program's, whatever the program is called.
        let is_other = !is_ours(&name) || is_program_ours || task.file_name() == *first;
        others += usize::from(is_other);
    }
    Ok(others == 1)
}

/// Do the mappings from `start` to `end` hold private memory without a file, and no stack? `maps`
/// is the system's list.
fn is_private(maps: &str, start: u64, end: u64) -> bool {
    let mut reached = start;
    for line in maps.lines() {
        let Some((from, to, rest)) = range(line) else { continue };
        if to <= reached {
            continue;
        }
        let mut words = rest.split_ascii_whitespace();
        let (permissions, inode, name) = (words.next(), words.nth(2), words.next());
        let plain = permissions.is_some_and(|p| p.starts_with("rw") && p.ends_with('p'));
        let anonymous = inode == Some("0") && matches!(name, None | Some("[heap]"));
        if from > reached || !plain || !anonymous {
            return false;
        }
        reached = to;
        if reached >= end {
            return true;
        }
    }
    false
}

/// Is the memory file with this inode number mapped at all addresses from `start` to `end`?
pub(super) fn is_mapped(maps: &str, inode: u64, start: u64, end: u64) -> bool {
    let inode = inode.to_string();
    maps.lines().any(|line| {
        let Some((from, to, rest)) = range(line) else { return false };
        from <= start && end <= to && rest.split_ascii_whitespace().nth(3) == Some(&inode)
    })
}

/// Where files that took the place of private memory are mapped, to be read and written: the first
/// address of each mapping, and the one behind its last.
pub(super) fn mapped_files(maps: &str) -> impl Iterator<Item = (u64, u64)> {
    maps.lines().filter_map(range).filter_map(|(from, to, rest)| {
        let mut words = rest.split_ascii_whitespace();
        let (permissions, name) = (words.next()?, words.nth(3)?);
        let is_ours = name.strip_prefix("/memfd:") == Some(NAME);
        (permissions == "rw-s" && is_ours).then_some((from, to))
    })
}

/// The addresses of a line of the list of mappings, and the rest of it.
fn range(line: &str) -> Option<(u64, u64, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some((hex(from)?, hex(to)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/program
00e03000-00e24000 rw-p 00000000 00:00 0           [heap]
7f0000000000-7f0000021000 rw-p 00000000 00:00 0
7f0000021000-7f0000022000 rw-s 00000000 00:01 77  /memfd:x (deleted)
7ffc0000-7ffd0000 rw-p 00000000 00:00 0           [stack]";

    #[test]
    fn only_private_memory_that_is_no_stack_is_converted() {
        assert!(is_private(MAPS, 0xe03000, 0xe24000));
        assert!(is_private(MAPS, 0x7f0000001000, 0x7f0000021000));
        assert!(!is_private(MAPS, 0xe03000, 0xe25000), "past the end");
        assert!(!is_private(MAPS, 0xe02000, 0xe04000), "before the beginning");
        assert!(!is_private(MAPS, 0x400000, 0x401000), "a program");
        assert!(!is_private(MAPS, 0x7f0000020000, 0x7f0000022000), "shared");
        assert!(!is_private(MAPS, 0x7ffc0000, 0x7ffc1000), "a stack");
        assert!(is_mapped(MAPS, 77, 0x7f0000021000, 0x7f0000022000));
        assert!(!is_mapped(MAPS, 7, 0x7f0000021000, 0x7f0000022000));
    }

    #[test]
    fn beside_threads_that_write_no_write_is_lost() {
        use std::sync::atomic::{AtomicBool, Ordering};
        const WORDS: usize = 64 * 512;
        // The thread of this test is not the only one of its process.
        let buffer = Buffer::new(WORDS * 8).unwrap();
        let end = AtomicBool::new(false);
        let (counts, converted) = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2usize)
                .map(|first| {
                    let (buffer, end) = (&buffer, &end);
                    scope.spawn(move || {
                        let mut rounds = 0;
                        while !end.load(Ordering::Acquire) {
                            rounds += 1;
                            for word in (first..WORDS).step_by(2) {
                                buffer.store_u64(word * 8, rounds).unwrap();
                            }
                        }
                        rounds
                    })
                })
                .collect();
            while buffer.load_u64(8).unwrap() == 0 {
                std::thread::yield_now();
            }
            let converted = convert(buffer.addr(), WORDS as u64 * 8).unwrap();
            end.store(true, Ordering::Release);
            let counts: Vec<u64> = writers.into_iter().map(|w| w.join().unwrap()).collect();
            (counts, converted)
        });
        for word in 0..WORDS {
            assert_eq!(buffer.load_u64(word * 8).unwrap(), counts[word % 2], "word {word}");
        }
        // Without the system's permission nothing is converted.
        if let Some(converted) = converted {
            let shared = Buffer::map(converted.file.as_fd(), 0, WORDS * 8).unwrap();
            assert_eq!(shared.load_u64(0).unwrap(), counts[0]);
        }
    }

    #[test]
    fn the_stack_of_this_thread_stays_where_it_is() {
        let here = [0u8; 16];
        assert!(convert((&raw const here).addr() as u64, 16).unwrap().is_none());
    }
}
