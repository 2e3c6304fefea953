//! Nodes as processes of their own, with etcd's three members, under faults: kill -9, SIGSTOP past
//! the lease and SIGCONT of the primary, while clients write and read. Nothing that was
//! acknowledged may be lost, nothing read that is not so any more, and all nodes end alike.
//!
//! This program is both: without arguments it is the judge, which starts etcd and the nodes; with
//! `node` it is a node, which carries out the commands that come on its standard input.

#[path = "../../store/tests/history/mod.rs"]
#[allow(dead_code, reason = "each test program uses a part of it")]
mod history;

mod etcd {
    pub(super) mod away;
    pub(super) mod histories;
    pub(super) mod judge;
    pub(super) mod member;
    pub(super) mod moving;
    pub(super) mod node;
    pub(super) mod readers;
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("node") {
        let endpoints = arguments.next().expect("etcd's URLs");
        return etcd::node::run(endpoints.split(',').map(str::to_owned).collect());
    }
    etcd::judge::run();
}
