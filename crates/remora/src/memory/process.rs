//! The memory of another process, reached by system calls.
//!
//! Two ways lead there. `process_vm_readv` takes the process's number, and works between processes
//! of one user. The file `/proc/PID/mem`, which the process has opened and passed on, works between
//! users; it stays bound to the memory that the process had then, and reads nothing after its end.
//! A page that is missing or not writable makes a fault, and no signal.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::checked;

/// Another process, by the way in which its memory is reached.
#[derive(Debug)]
pub struct Process {
    way: Way,
}

#[derive(Debug)]
enum Way {
    ByNumber(Image),
    /// `/proc/PID/mem`.
    ByFile(File),
}

impl Process {
    /// The process `pid`, which must be one of the same user that may be looked at.
    ///
    /// # Errors
    /// There is no such process, or it may not be looked at: it is another user's, or has made
    /// itself private (`PR_SET_DUMPABLE`), or the system forbids it (Yama's `ptrace_scope`).
    pub fn by_number(pid: i32) -> io::Result<Process> {
        Ok(Process { way: Way::ByNumber(Image::reached(pid)?) })
    }

    /// The process that has opened its `/proc/self/mem` as `file`. The caller has found that it is
    /// such a file.
    pub fn by_file(file: File) -> Process {
        Process { way: Way::ByFile(file) }
    }

    /// Copies its memory at `addr` into `dst`; `None` if not all of it can be read.
    pub(super) fn read(&self, addr: u64, dst: &mut [u8]) -> Option<()> {
        match &self.way {
            Way::ByNumber(image) => {
                checked::read_of(image.pid, addr, dst)?;
                image.is_there(addr).then_some(())
            }
            Way::ByFile(file) => file.read_exact_at(dst, addr).ok(),
        }
    }

    /// Copies `src` to its memory at `addr`; `None` if not all of it can be written.
    pub(super) fn write(&self, addr: u64, src: &[u8]) -> Option<()> {
        match &self.way {
            Way::ByNumber(image) => {
                image.is_there(addr).then_some(())?;
                checked::write_of(image.pid, src, addr)
            }
            Way::ByFile(file) => file.write_all_at(src, addr).ok(),
        }
    }
}

/// A process with the memory that it has now: until it ends, or runs another program (`exec`),
/// which has other memory under the same number.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) pid: Pid,
    /// Says whether the number still is that of the process.
    pidfd: OwnedFd,
    /// `/proc/PID/mem`, which stays bound to the memory.
    memory: File,
}

impl Image {
    /// The process `pid` as it is now.
    ///
    /// # Errors
    /// There is no such process, or its memory may not be looked at.
    pub(crate) fn of(pid: i32) -> io::Result<Image> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let memory = File::open(format!("/proc/{}/mem", pid.as_raw_nonzero()))?;
        Ok(Image { pid, pidfd, memory })
    }

    /// The same of a process that `process_vm_readv` may reach. None of its memory is looked at: a
    /// page that others provide (userfaultfd, a file of FUSE) lets a reader wait for ever.
    ///
    /// # Errors
    /// As for [`Image::of`], or the system forbids it.
    pub(crate) fn reached(pid: i32) -> io::Result<Image> {
        let image = Image::of(pid)?;
        checked::may_reach(image.pid)?;
        Ok(image)
    }

    /// Is the memory that the number leads to still the one that it was? `addr` is a place in it
    /// that is reached anyway.
    pub(crate) fn is_there(&self, addr: u64) -> bool {
        // Nothing is read of memory that has gone; of a page that is missing, an error is.
        let is_same = !matches!(self.memory.read_at(&mut [0], addr), Ok(0));
        is_same && lives(self.pidfd.as_fd())
    }
}

/// Does the process of a pidfd live? Its number is used again only after its end.
pub(crate) fn lives(pidfd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&now)) == Ok(0)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::memory::HostMemory;
    use remora_nic::Memory;

    /// A process of this test that waits for its standard input to end.
    fn child() -> Child {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read line; echo $line; read line"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Where the child has its stack, and how many bytes.
    fn stack(child: &Child) -> (u64, usize) {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        let line = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
        let (start, rest) = line.split_once('-').unwrap();
        let end = rest.split_once(' ').unwrap().0;
        let (start, end) =
            (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap());
        (start, (end - start) as usize)
    }

    #[test]
    fn another_process_is_read_written_and_gone() {
        let mut child = child();
        // It has run its first command once it answers.
        child.stdin.as_mut().unwrap().write_all(b"here\n").unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let (start, len) = stack(&child);
        let mem = format!("/proc/{}/mem", child.id());
        let file = File::options().read(true).write(true).open(mem).unwrap();
        // SAFETY: no address of this process is passed.
        let mut memory = unsafe { HostMemory::new() };
        let by_number = memory.add_process(Process::by_number(child.id() as i32).unwrap()).unwrap();
        let by_file = memory.add_process(Process::by_file(file)).unwrap();
        for base in [by_number, by_file] {
            let mut bytes = vec![0; len];
            memory.read(base | start, &mut bytes).unwrap();
            assert!(bytes.windows(5).any(|name| name == b"PATH="), "its environment is there");
            memory.write(base | start, b"written").unwrap();
            memory.read(base | start, &mut bytes[..7]).unwrap();
            assert_eq!(&bytes[..7], b"written");
            for addr in [base, base | 4096, base | 0xffff_ffff_fff8] {
                assert!(memory.write(addr, &[0; 8]).is_err(), "not mapped: {addr:#x}");
            }
            memory.write(base | start, &7u64.to_ne_bytes()).unwrap();
            assert_eq!(memory.fetch_add(base | start, 1), Ok(7));
            assert_eq!(memory.compare_swap(base | start, 7, 1), Ok(8), "it is another word");
            assert_eq!(memory.compare_swap(base | start, 8, 1), Ok(8));
            assert_eq!(memory.fetch_add(base | start, 0), Ok(1));
            assert!(memory.fetch_add(base | (start + 4), 1).is_err(), "not aligned");
            assert!(memory.fetch_add(base | 4096, 1).is_err(), "not mapped");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for base in [by_number, by_file] {
            assert!(memory.read(base | start, &mut [0; 8]).is_err());
            assert!(memory.write(base | start, &[0; 8]).is_err());
            assert!(memory.remove(base), "it was there");
            assert!(!memory.remove(base));
        }
        assert!(Process::by_number(child.id() as i32).is_err());
    }

    #[test]
    fn a_process_that_runs_another_program_is_gone() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read line; echo $line; read line; exec cat"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut answers = |line: &str| {
            input.write_all(line.as_bytes()).unwrap();
            let mut answer = String::new();
            output.read_line(&mut answer).unwrap();
            assert_eq!(answer, line.lines().last().unwrap().to_owned() + "\n");
        };
        answers("a shell\n");
        // SAFETY: no address of this process is passed.
        let mut memory = unsafe { HostMemory::new() };
        let base = memory.add_process(Process::by_number(child.id() as i32).unwrap()).unwrap();
        let (before, _) = stack(&child);
        memory.read(base | before, &mut [0; 8]).unwrap();
        answers("go on\nanother program\n");
        let (now, _) = stack(&child);
        for addr in [before, now] {
            assert!(memory.read(base | addr, &mut [0; 8]).is_err(), "it was read");
            assert!(memory.write(base | addr, b"written").is_err(), "it was written");
        }
        drop(input);
        assert!(child.wait().unwrap().success());
    }
}
