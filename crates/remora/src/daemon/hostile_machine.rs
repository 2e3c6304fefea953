//! A virtual machine that writes anything into the memory of its device, for fuzzing: a card, a
//! daemon without sockets, and programs that come and go.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::ivshmem::{Machine, MachineDevice, Qemu};
use super::server::{Server, ServerOptions};
use crate::device::DeviceOptions;
use crate::memory::Buffer;
use crate::message::{ClientRequest, Hello, encode, greeting};
use crate::shared::{MAILBOX, MailboxClient};

/// Steps that one input makes at most.
const STEPS: usize = 64;

/// What a guest does. The input is a list of steps: what (u8), how many bytes (u8), and those
/// bytes. Behind each step the daemon has a look.
///
/// # Panics
/// If the daemon breaks a promise; if the system has no memory, descriptors or threads.
pub fn hostile_machine(data: &[u8]) {
    let device = DeviceOptions::new().embedded().open().expect("a card");
    let server = Server::serve(device, pair().0, ServerOptions::default());
    let mut server = server.expect("a new card serves nobody else");
    let uid = rustix::process::geteuid().as_raw();
    let made = MachineDevice::new(uid, 0).expect("memory for a device");
    let whole = || {
        let len = made.arena_bytes + MAILBOX;
        Buffer::map_only(made.file.as_fd(), 0, len).expect("the device's memory")
    };
    let memory = whole();
    let letters = Buffer::part(&Arc::new(whole()), made.arena_bytes, MAILBOX);
    let mailbox = MailboxClient::open(letters.expect("the mailbox is behind the arena"));
    let mut mailbox = mailbox.expect("the daemon has made it");
    let (stream, _qemu) = pair();
    let mut machine = Machine::new("/nowhere/fuzz.sock".into(), pair().0);
    (machine.device, machine.qemu) = (Some(made), Some(Qemu { stream, pid: 1 }));
    server.machines.push(machine);
    let mut rest = data;
    for _ in 0..STEPS {
        let [what, len, bytes @ ..] = rest else { break };
        let (bytes, behind) = bytes.split_at(bytes.len().min(usize::from(*len)));
        rest = behind;
        step(&memory, &mut mailbox, *what, bytes);
        server.open_letters(0);
        server.look_at_endings();
    }
    mailbox.send(&[]).expect("a short message");
    server.open_letters(0);
    while server.is_ending() {
        server.look_at_endings();
    }
}

/// One step of the guest's.
fn step(memory: &Buffer, mailbox: &mut MailboxClient, what: u8, bytes: &[u8]) {
    let word = |at: usize| {
        let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
        word.map_or(0, u32::from_le_bytes)
    };
    let sent = match what % 6 {
        0 => mailbox.greet(&greeting(&Hello::default())),
        1 => mailbox.greet(&[&greeting(&Hello::default())[..6], bytes].concat()),
        2 => mailbox.send(&encode(&ClientRequest::Command(bytes))),
        3 => mailbox.send(bytes),
        // Anywhere in the mailbox, and anywhere at all.
        kind => {
            let (from, len) = match kind {
                4 => (memory.len() - MAILBOX, MAILBOX),
                _ => (0, memory.len()),
            };
            let at = from + word(0) as usize % (len / 4) * 4;
            let place = memory.word32(at).expect("a place in the memory");
            place.store(word(4), Ordering::Relaxed);
            Ok(())
        }
    };
    sent.expect("a step is shorter than a message may be");
}

/// Two sockets that are connected to each other.
fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    pair.expect("descriptors")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::hostile::words;

    #[test]
    fn any_letters_leave_the_daemon_whole() {
        let mut next = words();
        for _ in 0..30 {
            // A greeting, so that there is a session, and short requests behind it.
            let mut steps = vec![0, 0];
            for _ in 0..20 {
                let [what, len, rest @ ..] = next();
                steps.extend([what, len % 16]);
                steps.extend(rest.iter().chain(&next()).chain(&next()).take(usize::from(len % 16)));
            }
            hostile_machine(&steps);
        }
        hostile_machine(&[]);
        hostile_machine(&[255; 4096]);
    }
}
