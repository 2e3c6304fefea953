//! Private memory of the program, turned into memory that the card's process shares: the pages'
//! bytes move to a sealed memory file, which is mapped in their place. Atomics need that, since no
//! system call changes a word of another process in one step.
//!
//! A write by another thread between the copy and the mapping would be lost. So memory is converted
//! only while no thread but the calling one runs code of the program, with signals blocked. (The
//! memory is then shared with children of a fork, too.)

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::memory::{Buffer, memfd};
use crate::threads::without_signals;

/// The name of this library's own threads, or what it begins with. They do not write the program's
/// memory.
const OWN_THREAD: &str = "remora";

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
    if !is_private(&fs::read_to_string("/proc/self/maps")?, start, end) || !is_alone()? {
        return Ok(None);
    }
    let len = end - start;
    let file = memfd::sealed("remora-region", len)?;
    // SAFETY: the range is mapped, as the system has just said, and the view is used here only.
    let Some(mut pages) = (unsafe { Buffer::view(start, len as usize) }) else { return Ok(None) };
    without_signals(|| pages.move_to(file.as_fd()))?;
    Ok(Some(Converted { start, len, file }))
}

/// Is the calling thread the only one that runs code of the program?
fn is_alone() -> io::Result<bool> {
    let mut others = 0;
    let first = std::process::id().to_string();
    let first = std::ffi::OsStr::new(&first);
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?;
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let name = name.trim_end().strip_prefix(OWN_THREAD);
        let own = name.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
        // The first thread is the program's, whatever the program is called.
        others += usize::from(!own || task.file_name() == *first);
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
    fn beside_other_threads_nothing_is_converted() {
        // The thread of this test is not the only one of its process.
        let buffer = Buffer::new(4096).unwrap();
        assert!(convert(buffer.addr(), 4096).unwrap().is_none());
    }
}
