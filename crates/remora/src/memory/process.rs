//! The memory of another process, reached by system calls.
//!
//! Two ways lead there. `process_vm_readv` takes the process's number, and works between processes
//! of one user. The file `/proc/PID/mem`, which the process has opened and passed on, works between
//! users; it stays bound to the memory that the process had then, and reads nothing after its end.
//! A page that is missing or not writable makes a fault, and no signal.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
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
    /// The pidfd says whether the number still is that of the process.
    ByNumber { pid: Pid, pidfd: OwnedFd },
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
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let process =
            Process { way: Way::ByNumber { pid, pidfd: pidfd_open(pid, PidfdFlags::empty())? } };
        checked::may_reach(pid)?;
        Ok(process)
    }

    /// The process that has opened its `/proc/self/mem` as `file`. The caller has found that it is
    /// such a file.
    pub fn by_file(file: File) -> Process {
        Process { way: Way::ByFile(file) }
    }

    /// Copies its memory at `addr` into `dst`; `None` if not all of it can be read.
    pub(super) fn read(&self, addr: u64, dst: &mut [u8]) -> Option<()> {
        match &self.way {
            Way::ByNumber { pid, pidfd } => {
                checked::read_of(*pid, addr, dst)?;
                // A number is used again only after its process has ended.
                lives(pidfd).then_some(())
            }
            Way::ByFile(file) => file.read_exact_at(dst, addr).ok(),
        }
    }

    /// Copies `src` to its memory at `addr`; `None` if not all of it can be written.
    pub(super) fn write(&self, addr: u64, src: &[u8]) -> Option<()> {
        match &self.way {
            Way::ByNumber { pid, pidfd } => {
                lives(pidfd).then_some(())?;
                checked::write_of(*pid, src, addr)
            }
            Way::ByFile(file) => file.write_all_at(src, addr).ok(),
        }
    }
}

fn lives(pidfd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)) == Ok(0)
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
            assert!(memory.fetch_add(base | start, 1).is_err(), "no call adds in one step");
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
}
