//! The ways of a node to etcd, which can be cut while others reach it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// How often a way that is cut is looked at.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
struct State {
    is_cut: AtomicBool,
    is_over: AtomicBool,
}

/// A way to each member of etcd. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Where the members are reached by it.
    pub(crate) urls: String,
    doors: Vec<SocketAddr>,
    state: Arc<State>,
}

impl Gate {
    /// Ways to the members of these URLs.
    pub(crate) fn to(members: &[String]) -> Gate {
        let state = Arc::new(State::default());
        let open = |member: &String| {
            let member = member.strip_prefix("http://").unwrap().parse().unwrap();
            let door = TcpListener::bind("127.0.0.1:0").unwrap();
            let (at, state) = (door.local_addr().unwrap(), state.clone());
            spawn(move || let_in(&door, member, &state));
            at
        };
        let doors: Vec<_> = members.iter().map(open).collect();
        let urls: Vec<_> = doors.iter().map(|door| format!("http://{door}")).collect();
        Gate { urls: urls.join(","), doors, state }
    }

    /// What is sent waits, as where packets are lost, until the way is there again.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.state.is_cut.store(is_cut, Relaxed);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.state.is_over.store(true, Relaxed);
        // So that its threads look.
        self.doors.iter().for_each(|door| drop(TcpStream::connect(door)));
    }
}

fn let_in(door: &TcpListener, member: SocketAddr, state: &Arc<State>) {
    for near in door.incoming() {
        if state.is_over.load(Relaxed) {
            return;
        }
        // A member that is not there is not reached.
        let (Ok(near), Ok(far)) = (near, TcpStream::connect(member)) else { continue };
        let ends = [(&near, &far), (&far, &near)]
            .map(|(from, to)| [from, to].map(|end| end.try_clone().expect("a descriptor more")));
        for [from, to] in ends {
            let state = state.clone();
            spawn(move || carry(&from, &to, &state));
        }
    }
}

/// Carries bytes until an end is closed.
fn carry(mut from: &TcpStream, mut to: &TcpStream, state: &State) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while state.is_cut.load(Relaxed) && !state.is_over.load(Relaxed) {
            sleep(LOOK);
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // Either may be closed already.
    [from, to].into_iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
}
