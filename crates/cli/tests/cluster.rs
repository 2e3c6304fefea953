//! A store on several machines, from the command: `remora store cluster`.

mod support;

/// The options are there, and say what is missing.
#[cfg(not(feature = "cluster"))]
#[test]
fn a_build_without_clusters_says_how_to_get_one() {
    let serve = ["store", "serve", "--redis", "0", "--cluster", "orders"];
    for command in [&serve[..], &["store", "cluster", "status", "orders"]] {
        let told = support::fail(command);
        assert!(told.contains("--features cluster") && told.contains("protoc"), "{told}");
    }
}

#[cfg(feature = "cluster")]
#[path = "../../cluster/tests/etcd/member.rs"]
mod member;

#[cfg(feature = "cluster")]
#[path = "../../store/tests/suites/mod.rs"]
mod suites;

#[cfg(feature = "cluster")]
mod with_clusters {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    use rustix::process::{Pid, Signal, kill_process};
    use serde_json::Value;

    use crate::member::ask_for_passwords;
    use crate::suites::{
        MEMCACHED_TESTS, REDIS_UNITS, brought, go_clients, go_command, memcached_test, node_client,
        node_command, redis_unit, run_of, skip, suite,
    };
    use crate::support::nic::Daemon;
    use crate::support::verbs::installed;
    use crate::support::{Folder, Killed, PATIENCE, command, fail, run, succeed, until};

    /// `remora store cluster try`, and more nodes.
    struct Trial {
        child: Child,
        ready: Value,
        /// Nodes that were started later, and where Redis' clients reach them.
        more: Vec<(Child, String)>,
    }

    impl Trial {
        fn start(groups: &str, nodes: &str) -> Trial {
            Trial::start_with(&["--groups", groups, "--nodes", nodes])
        }

        fn start_with(options: &[&str]) -> Trial {
            Trial::start_as(options, |_| {})
        }

        /// With `prepare` to change the command first.
        fn start_as(options: &[&str], prepare: impl FnOnce(&mut Command)) -> Trial {
            let args = ["store", "cluster", "try", "--json", "--until-eof"];
            let (child, ready) = begin_with(&[&args[..], options].concat(), prepare);
            Trial { child, ready, more: Vec::new() }
        }

        fn text(&self, name: &str) -> &str {
            self.ready[name].as_str().unwrap()
        }

        /// Starts another node.
        fn add_node(&mut self) -> Value {
            let (cluster, etcd) = (self.text("cluster"), self.text("etcd"));
            let serve = ["store", "serve", "--json", "--until-eof", "--memory", "64M"];
            let which = ["--redis", "127.0.0.1:0", "--cluster", cluster, "--etcd", etcd];
            let (child, ready) = begin(&[&serve[..], &which].concat());
            self.more.push((child, ready["redis"][0].as_str().unwrap().to_owned()));
            ready
        }

        /// What the group says of itself. On a machine that is busy etcd may not answer in time.
        fn status(&self) -> Value {
            let (group, etcd) = (self.text("cluster"), self.text("etcd"));
            let mut told = Vec::new();
            until("etcd answers", || {
                let look = run(["store", "cluster", "status", group, "--etcd", etcd, "--json"]);
                told = look.stdout;
                look.status.success()
            });
            serde_json::from_slice(&told).unwrap()
        }

        /// Where Redis' clients of each node are, also of those that were started later.
        fn fronts(&self) -> Vec<&str> {
            let nodes = self.ready["nodes"].as_array().unwrap().iter();
            let first = nodes.map(|node| node["redis"].as_str().unwrap());
            first.chain(self.more.iter().map(|(_, front)| front.as_str())).collect()
        }

        /// The node whose clients are at this address.
        fn node_at(&self, front: &str) -> &Value {
            let nodes = self.ready["nodes"].as_array().unwrap();
            nodes.iter().find(|node| node["redis"] == front).unwrap()
        }

        /// Kills the node whose clients are at this address.
        fn kill(&self, front: &str) {
            self.signal(front, Signal::KILL);
        }

        fn signal(&self, front: &str, signal: Signal) {
            let pid = self.node_at(front)["process"].as_i64().unwrap();
            let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
            kill_process(pid, signal).unwrap();
        }

        /// Asks each node until one of them answers this. Which? (On a busy machine, the primary
        /// may change at any time.)
        fn answered(&self, ask: &str, wanted: &[&str]) -> String {
            let mut by = None;
            until(&format!("{ask}: {wanted:?}"), || {
                let fronts = self.fronts();
                by = fronts.into_iter().find(|at| redis(at, ask) == wanted);
                by.is_some()
            });
            by.unwrap().to_owned()
        }

        /// Ends it in good order: by the end of its input.
        fn finish(mut self) {
            self.more.drain(..).for_each(|(child, _)| end(child));
            let folder = self.text("folder").to_owned();
            assert!(Path::new(&folder).exists());
            drop(self.child.stdin.take());
            assert!(self.child.wait().unwrap().success());
            assert!(!Path::new(&folder).exists(), "{folder} is left");
            let told = fail(["store", "cluster", "status", "try", "--etcd", self.text("etcd")]);
            assert!(told.contains("nobody answers"), "etcd is left: {told}");
            assert!(self.fronts().iter().all(|at| TcpStream::connect(at).is_err()));
        }
    }

    impl Drop for Trial {
        fn drop(&mut self) {
            self.more.drain(..).for_each(|(child, _)| end(child));
            // Its input ends, and it takes its folder along.
            drop(self.child.stdin.take());
            self.child.wait().ok();
        }
    }

    fn end(mut child: Child) {
        child.kill().ok();
        child.wait().ok();
    }

    /// Starts a command, and waits for its line of JSON.
    fn begin(args: &[&str]) -> (Child, Value) {
        begin_with(args, |_| {})
    }

    /// As [`begin`], with `prepare` to change the command first.
    fn begin_with(args: &[&str], prepare: impl FnOnce(&mut Command)) -> (Child, Value) {
        let mut command = command(args);
        prepare(&mut command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        (child, serde_json::from_str(&line).unwrap())
    }

    /// The lines of a node's answers to all of this; none if it is gone.
    fn lines_of(at: &str, requests: &str) -> Vec<String> {
        let Ok(mut stream) = TcpStream::connect(at) else { return Vec::new() };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        if stream.write_all(requests.as_bytes()).is_err() {
            return Vec::new();
        }
        BufReader::new(&stream).lines().map_while(Result::ok).collect()
    }

    fn redis(at: &str, command: &str) -> Vec<String> {
        let mut lines = lines_of(at, &format!("{command}\r\nQUIT\r\n"));
        // That of QUIT.
        lines.pop();
        lines
    }

    fn memcached(at: &str, command: &str) -> Vec<String> {
        lines_of(at, &format!("{command}\r\nquit\r\n"))
    }

    fn has_role(at: &str, role: &str) -> bool {
        redis(at, "INFO replication").contains(&format!("role:{role}"))
    }

    fn node<'v>(status: &'v Value, name: &Value) -> Option<&'v Value> {
        status["nodes"].as_array()?.iter().find(|node| node["node"] == *name)
    }

    #[test]
    fn a_group_outlives_its_primary_and_gets_another_node() {
        let programs = [("etcd", "etcd-server")];
        if !installed(&programs) {
            return;
        }
        let mut trial = Trial::start("1", "3");
        // (All others have it.)
        let mut primary = trial.answered("SET foo 1\r\nWAIT 2 0", &["+OK", ":2"]);
        // A backup sends clients to the primary.
        until("a backup names the primary", || {
            primary = trial.answered("SET foo 1", &["+OK"]);
            let moved = format!("-MOVED 12182 {primary}");
            let mut others = trial.fronts().into_iter().filter(|at| *at != primary);
            others.all(|at| redis(at, "GET foo") == [moved.as_str()] && has_role(at, "slave"))
                && has_role(&primary, "master")
        });
        let killed = trial.node_at(&primary).clone();
        trial.kill(&primary);
        // Another node serves, and has what was acknowledged.
        let next = trial.answered("SET bar 2\r\nWAIT 2 20", &["+OK", ":1"]);
        assert_ne!(next, primary);
        trial.answered("GET foo", &["$1", "1"]);
        until("the group says who is lost", || {
            let status = trial.status();
            let lost = node(&status, &killed["node"]).unwrap();
            lost["has_lease"] == false && status["serving_s"].is_u64()
        });
        // A node that comes takes its place, with a copy of everything.
        let ready = trial.add_node();
        until("the node has the lost one's place", || {
            let status = trial.status();
            let new = node(&status, &ready["node"]);
            node(&status, &killed["node"]).is_none()
                && status["is_established"] == true
                && new.is_some_and(|new| new["part"] != "spare" && new["behind_bytes"] == 0)
        });
        trial.finish();
    }

    /// They write their logs past the daemon, whose card runs no kernels of theirs.
    #[test]
    fn nodes_share_a_daemons_card() {
        if !installed(&[("etcd", "etcd-server")]) {
            return;
        }
        let daemon = Daemon::start();
        let socket = daemon.folder.path("nic.sock");
        let trial = Trial::start_as(&["--nodes", "3"], |it| _ = it.env("REMORA_NIC", socket));
        let primary = trial.answered("SET foo 1\r\nWAIT 2 0", &["+OK", ":2"]);
        assert!(trial.node_at(&primary)["store"].is_null());
        until("the primary reaches both backups' memory", || {
            let answers = lines_of(&primary, &format!("{}QUIT\r\n", "SET foo 1\r\n".repeat(20)));
            let status = daemon.json(&["nic", "status", "--json"]);
            let passes = status["passes"].as_array().unwrap();
            answers.iter().all(|answer| answer == "+OK") && passes.len() >= 2
        });
        trial.kill(&primary);
        let next = trial.answered("SET bar 2\r\nWAIT 1 0", &["+OK", ":1"]);
        assert_ne!(next, primary);
        trial.answered("GET foo", &["$1", "1"]);
        trial.finish();
    }

    /// Without directories, what a node holds goes with it: one that is to end stays until the
    /// next one has it.
    #[test]
    fn nodes_in_memory_are_replaced_one_after_the_other() {
        if !installed(&[("etcd", "etcd-server")]) {
            return;
        }
        let mut trial = Trial::start("1", "3");
        trial.answered("SET foo 1", &["+OK"]);
        let old: Vec<_> = trial.fronts().into_iter().map(str::to_owned).collect();
        let mut new = Vec::new();
        for front in &old {
            trial.signal(front, Signal::TERM);
            let name = &trial.node_at(front)["node"];
            let is_lost = |told: &Value| told["has_lease"] == false;
            until("a node has ended", || node(&trial.status(), name).is_none_or(is_lost));
            new.push(trial.add_node()["redis"][0].as_str().unwrap().to_owned());
        }
        until("the new nodes serve what the old ones had", || {
            new.iter().any(|at| redis(at, "GET foo") == ["$1", "1"])
        });
        trial.finish();
    }

    /// A group gets more members, and fewer, and has what it had.
    #[test]
    fn a_group_is_resized_while_it_serves() {
        if !installed(&[("etcd", "etcd-server")]) {
            return;
        }
        let mut trial = Trial::start("1", "3");
        let members = |trial: &Trial| {
            let status = trial.status();
            let nodes = status["nodes"].as_array().unwrap().iter();
            let members = nodes.filter(|node| node["part"] != "spare").count();
            (status["is_established"] == true).then_some(members)
        };
        let resize = |trial: &Trial, to: &str| {
            let (cluster, etcd) = (trial.text("cluster"), trial.text("etcd"));
            succeed(["store", "cluster", "resize", cluster, to, "--etcd", etcd])
        };
        let put =
            |trial: &Trial, key: usize| trial.answered(&format!("SET k{key} {key}"), &["+OK"]);
        put(&trial, 0);
        let told = resize(&trial, "5");
        assert_eq!(told, "Group a has 3 of 5 members: start 2 nodes more.\n");
        let named = |trial: &Trial| [trial.text("cluster"), trial.text("etcd")].map(str::to_owned);
        let [cluster, etcd] = &named(&trial);
        let told = succeed(["store", "cluster", "status", cluster, "--etcd", etcd]);
        assert!(told.contains("It has 3 members, and is to have 5."), "{told}");
        (0..2).for_each(|_| drop(trial.add_node()));
        until("there are five members", || members(&trial) == Some(5));
        put(&trial, 1);
        for (key, size) in [(2, 4), (3, 2), (4, 3)] {
            assert_eq!(resize(&trial, &size.to_string()), "");
            // (On a busy machine, the next epoch may begin at any time.)
            until("the group has so many members", || members(&trial) == Some(size));
            put(&trial, key);
        }
        for key in 0..5 {
            let value = key.to_string();
            trial.answered(&format!("GET k{key}"), &[&format!("${}", value.len()), &value]);
        }
        let told =
            fail(["store", "cluster", "resize", cluster, "3", "--group", "b", "--etcd", etcd]);
        assert!(told.contains("no group b"), "{told}");
        trial.finish();
    }

    /// A command that is told to stop before the end has not done what was asked for.
    #[test]
    fn a_resize_that_is_left_says_so_and_goes_on() {
        if !installed(&[("etcd", "etcd-server")]) {
            return;
        }
        let trial = Trial::start("1", "3");
        let (cluster, etcd) = (trial.text("cluster"), trial.text("etcd"));
        let all = |signal| trial.fronts().iter().for_each(|front| trial.signal(front, signal));
        all(Signal::STOP);
        let mut waiting = command(["store", "cluster", "resize", cluster, "2", "--etcd", etcd])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(waiting.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.contains("is to have 2"), "{line}");
        kill_process(Pid::from_child(&waiting), Signal::INT).unwrap();
        let status = waiting.wait().unwrap();
        all(Signal::CONT);
        said.read_line(&mut line).unwrap();
        assert!(status.code() == Some(130) && line.contains("goes on without"), "{line}");
        until("the group has two members", || {
            let status = trial.status();
            let nodes = status["nodes"].as_array().unwrap().iter();
            nodes.filter(|node| node["part"] != "spare").count() == 2
        });
        trial.finish();
    }

    #[test]
    fn a_cluster_to_try_has_the_password_of_the_environment() {
        if !installed(&[("etcd", "etcd-server")]) {
            return;
        }
        let args = ["store", "cluster", "try", "--json", "--until-eof", "--nodes", "1"];
        let (child, ready) = begin_with(&args, |command| {
            command.env("REMORA_STORE_PASSWORD", "sesame");
        });
        let trial = Trial { child, ready, more: Vec::new() };
        let front = trial.fronts()[0];
        assert!(redis(front, "GET foo")[0].starts_with("-NOAUTH"));
        assert_eq!(redis(front, "AUTH sesame\r\nSET foo 1"), ["+OK", "+OK"]);
        trial.finish();
    }

    /// A script below `cluster`, for a client in Python, if its module is there.
    fn python(script: &str, client: &str, module: &str) -> Option<Command> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = brought("judges-venv").join("bin/python");
        let known = Command::new(&python).args(["-c", &format!("import {module}")]).status();
        if !known.is_ok_and(|status| status.success()) {
            skip(&format!("{module} in Python"));
            return None;
        }
        let mut command = Command::new(&python);
        command.env("CLIENT", client).arg(root.join("tests/cluster").join(script));
        Some(command)
    }

    /// `cluster/redis_cluster.py` says what it found wrong.
    #[test]
    fn a_cluster_client_shards_while_slots_move() {
        if !installed(&[("etcd", "etcd-server")]) {
            return;
        }
        let Some(mut command) = python("redis_cluster.py", "redis", "redis.cluster") else {
            return;
        };
        let trial = Trial::start("2", "1");
        let (host, port) = trial.fronts()[0].rsplit_once(':').unwrap();
        command.args([host, port, env!("CARGO_BIN_EXE_remora")]);
        let judged = command.args([trial.text("cluster"), trial.text("etcd")]).output().unwrap();
        let said = String::from_utf8_lossy(&judged.stderr).into_owned();
        assert!(judged.status.success(), "{said}");
        let (cluster, etcd) = (trial.text("cluster"), trial.text("etcd"));
        let told = fail(["store", "cluster", "move", cluster, "0", "c", "--etcd", etcd]);
        assert!(told.contains("no group c") && told.contains("--group c"), "{told}");
        let told = succeed(["store", "cluster", "status", cluster, "--etcd", etcd]);
        assert!(told.contains("slots: 0-99, 101-1999, 3001-16000.\n"), "{told}");
        assert!(told.contains("slots: 100, 2000-3000, 16001-16383.\n"), "{told}");
        trial.finish();
    }

    /// The way to another version: what a cluster has is kept in a file, and another one begins
    /// with it.
    #[test]
    fn what_a_cluster_has_is_dumped_and_loaded_into_another() {
        if !installed(&[("etcd", "etcd-server")]) {
            return;
        }
        let folder = Folder::new();
        let path = |name: &str| folder.path(name).to_str().unwrap().to_owned();
        let (rows, kept) = (path("rows.csv"), path("kept.rdb"));
        let row = |key: u32| format!("key-{key},value {key}\n");
        let csv: String = std::iter::once("key,value\n".into()).chain((0..300).map(row)).collect();
        std::fs::write(&rows, csv).unwrap();
        let at = |trial: &Trial| trial.ready["nodes"][0]["store"].as_str().unwrap().to_owned();
        let dumped = |trial: &Trial| {
            let json = succeed(["store", "dump", &at(trial), "--format", "json"]);
            let rows = json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            let row = |row: Value| (row["key"].to_string(), row["value"].to_string());
            rows.map(row).collect::<std::collections::BTreeMap<_, _>>()
        };
        let first = Trial::start("2", "1");
        succeed(["store", "load", &at(&first), &rows]);
        let had = dumped(&first);
        assert_eq!(had.len(), 300, "of both groups");
        succeed(["store", "dump", &at(&first), "--format", "rdb", "--out", &kept]);
        first.finish();
        let next = Trial::start("2", "1");
        succeed(["store", "load", &at(&next), &kept]);
        assert_eq!(dumped(&next), had);
        next.finish();
    }

    /// Redis' and memcached's own suites, and a value as long as can be.
    #[test]
    fn a_group_of_three_passes_the_suites() {
        if !installed(&[("etcd", "etcd-server")]) {
            return;
        }
        // The suites stay with the primary: on a busy machine, too, it keeps so long a lease.
        let trial = Trial::start_with(&["--memory", "512M", "--lease", "60"]);
        let primary = trial.answered("SET foo 1", &["+OK"]);
        let (host, port) = primary.rsplit_once(':').unwrap();
        let long = "v".repeat(16 << 20);
        let set = format!("*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n${}\r\n{long}", 16 << 20);
        assert_eq!(redis(&primary, &set), ["+OK"]);
        assert_eq!(redis(&primary, "STRLEN long"), [format!(":{}", 16 << 20)]);
        if let Some(folder) = suite("redis-") {
            for unit in run_of(REDIS_UNITS) {
                assert_eq!(redis(&primary, "FLUSHALL"), ["+OK"]);
                redis_unit(&folder, (host, port), unit, &["--cluster-mode"]);
            }
        }
        assert_eq!(redis(&primary, "CONFIG SET proto-max-bulk-len 1mb"), ["+OK"]);
        // (A backup relays to the primary.)
        let backup = trial.fronts().into_iter().find(|at| *at != primary).unwrap();
        let memcached = trial.node_at(backup)["memcached"].as_str().unwrap();
        if let Some(folder) = suite("memcached-") {
            for name in run_of(MEMCACHED_TESTS) {
                let mut stream = TcpStream::connect(memcached).unwrap();
                stream.write_all(b"flush_all\r\n").unwrap();
                stream.read_exact(&mut [0; 4]).unwrap();
                memcached_test(&folder, memcached, name);
            }
        }
        trial.finish();
    }

    /// memcached's clients know no primaries.
    #[test]
    fn memcacheds_clients_come_to_any_node() {
        if !installed(&[("etcd", "etcd-server")]) {
            return;
        }
        let trial = Trial::start("1", "3");
        let primary = trial.answered("SET foo 1", &["+OK"]);
        let nodes = trial.ready["nodes"].as_array().unwrap();
        let fronts = nodes.iter().map(|node| node["memcached"].as_str().unwrap());
        let mut fronts: Vec<_> = fronts.collect();
        for at in &fronts {
            let set = format!("set {at} 0 0 1\r\nx");
            until("a node stores", || memcached(at, &set) == ["STORED"]);
        }
        // Whichever node is the next primary, the others lead there.
        let killed = trial.node_at(&primary);
        fronts.retain(|at| killed["memcached"] != *at);
        trial.kill(&primary);
        for at in &fronts {
            for other in nodes.iter().map(|node| node["memcached"].as_str().unwrap()) {
                let found = [format!("VALUE {other} 0 1"), "x".to_owned(), "END".to_owned()];
                until("a node answers", || memcached(at, &format!("get {other}")) == found);
            }
        }
        let relayed = |at: &&str| {
            redis(at, "INFO stats").iter().any(|line| {
                line.strip_prefix("relayed_connections:").is_some_and(|count| count != "0")
            })
        };
        assert!(trial.fronts().iter().any(relayed), "every node was the primary");
        trial.finish();
    }

    /// go-redis' and iovalkey's cluster clients, unmodified.
    #[test]
    fn clients_of_clusters_shard() {
        if !installed(&[("etcd", "etcd-server")]) {
            return;
        }
        let trial = Trial::start_with(&["--groups", "3", "--nodes", "1", "--lease", "60"]);
        let (_, port) = trial.fronts()[0].rsplit_once(':').unwrap();
        go_clients(&["cluster", port]);
        node_client(&["cluster", port]);
        trial.finish();
    }

    /// A client of others' that works until its input ends. Dropping it ends it.
    struct Worker(Killed);

    impl Worker {
        /// Waits until it works.
        fn start(mut command: Command, port: &str) -> Worker {
            command.args(["failover", port]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut worker = Worker(Killed(command.stderr(Stdio::piped()).spawn().unwrap()));
            let mut line = String::new();
            BufReader::new(worker.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            if line != "works\n" {
                worker.finish();
            }
            worker
        }

        /// Ends its input; it then says what it found wrong.
        fn finish(&mut self) {
            drop(self.0.stdin.take());
            let mut said = String::new();
            self.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
            self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            assert!(self.0.wait().unwrap().success(), "{said}");
        }
    }

    /// The cluster clients of go-redis, iovalkey, redis-py, valkey-py and Valkey GLIDE, unmodified,
    /// which knew only the node that is killed when they began.
    #[test]
    fn clients_of_clusters_outlive_a_primary() {
        if !installed(&[("etcd", "etcd-server")]) {
            return;
        }
        let in_python =
            [("redis", "redis.cluster"), ("valkey", "valkey.cluster"), ("glide", "glide_sync")];
        let in_python = in_python.map(|(client, module)| python("failover.py", client, module));
        let clients = [go_command(), node_command()].into_iter().chain(in_python);
        let trial = Trial::start("1", "3");
        let mut primary = trial.answered("SET foo 1", &["+OK"]);
        let (_, port) = primary.rsplit_once(':').unwrap();
        let mut workers: Vec<_> =
            clients.flatten().map(|client| Worker::start(client, port)).collect();
        // (On a busy machine, it may be another one by now.)
        primary = trial.answered("SET foo 2", &["+OK"]);
        trial.kill(&primary);
        let next = trial.answered("SET bar 2", &["+OK"]);
        assert_ne!(next, primary);
        workers.iter_mut().for_each(Worker::finish);
        trial.answered("GET foo", &["$1", "2"]);
        trial.finish();
    }

    /// etcd asks for a user's password.
    #[test]
    fn a_node_shows_etcd_a_password() {
        if !installed(&[("etcd", "etcd-server")]) {
            return;
        }
        let etcd = crate::member::Etcd::start_alone();
        ask_for_passwords(&etcd.group("safe"), ("remora", "open sesame"));
        let folder = Folder::new();
        let file = |name: &str, text: &str| {
            std::fs::write(folder.path(name), text).unwrap();
            folder.path(name).to_str().unwrap().to_owned()
        };
        let (right, wrong) = (file("right", "open sesame\n"), file("wrong", "open barley\n"));
        let url = etcd.endpoints[0].as_str();
        let serve = ["store", "serve", "--json", "--until-eof", "--memory", "64M"];
        let which = ["--redis", "127.0.0.1:0", "--cluster", "safe", "--nodes", "1", "--etcd", url];
        let serve = [&serve[..], &which].concat();
        let status = ["store", "cluster", "status", "safe", "--etcd", url];
        let shows = |file| ["--etcd-user", "remora", "--etcd-password-file", file];
        let (child, ready) = begin(&[&serve[..], &shows(&right)].concat());
        let front = ready["redis"][0].as_str().unwrap().to_owned();
        until("it serves", || redis(&front, "SET foo 1") == ["+OK"]);
        // (On a busy machine, etcd may answer late, and the command says so.)
        until("the user is told who is the primary", || {
            let done = run([&status[..], &shows(&right), &["--json"]].concat());
            let told: Result<Value, _> = serde_json::from_slice(&done.stdout);
            told.is_ok_and(|told| told["primary"] == ready["node"])
        });
        until("the password may be in the environment", || {
            let mut command = command([&status[..], &["--etcd-user", "remora"]].concat());
            let done = command.env("REMORA_ETCD_PASSWORD", "open sesame").output();
            done.unwrap().status.success()
        });
        let says = |args: &[&str], words: &[&str]| {
            until(&format!("{args:?}: {words:?}"), || {
                let told = fail(args);
                words.iter().all(|word| told.contains(word))
            });
        };
        let refused = [url, "authentication failed", "check the user’s name and password"];
        for asks in [&serve[..], &status] {
            says(&[asks, &shows(&wrong)].concat(), &refused);
            says(asks, &[url, "asks for a user and a password"]);
        }
        let other = ["store", "cluster", "status", "other", "--etcd", url];
        says(&[&other[..], &shows(&right)].concat(), &["permission denied", "grant a role"]);
        end(child);
    }

    /// etcd and its clients know each other by certificates.
    #[test]
    fn a_node_and_etcd_show_each_other_certificates() {
        if !installed(&[("etcd", "etcd-server"), ("openssl", "openssl")]) {
            return;
        }
        let etcd = crate::member::Etcd::start_with_certificates();
        let files = etcd.certificates();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (url, ca) = (etcd.endpoints[0].clone(), text(&files.ca));
        let trusts = ["--etcd", &url, "--etcd-ca", &ca].map(str::to_owned);
        let own = [&files.client.certificate, &files.client.key].map(|path| text(path));
        let shows = ["--etcd-cert", &own[0], "--etcd-key", &own[1]].map(str::to_owned);
        let both = || trusts.iter().chain(&shows).map(String::as_str);
        let serve = ["store", "serve", "--json", "--until-eof", "--memory", "64M"];
        let which = ["--redis", "127.0.0.1:0", "--cluster", "safe", "--nodes", "1"];
        let (child, ready) =
            begin(&serve.into_iter().chain(which).chain(both()).collect::<Vec<_>>());
        let front = ready["redis"][0].as_str().unwrap().to_owned();
        until("it serves", || redis(&front, "SET foo 1") == ["+OK"]);
        let status = || ["store", "cluster", "status", "safe"].into_iter();
        let told = succeed(status().chain(both()).chain(["--json"]));
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["primary"], ready["node"]);
        end(child);
        // Each says why it does not trust the other.
        let told = fail(status().chain(trusts.iter().map(String::as_str)));
        assert!(told.contains("certificate"), "{told}");
        let another = ["--etcd", &url, "--etcd-ca", &own[0]];
        let told = fail(status().chain(another).chain(shows.iter().map(String::as_str)));
        assert!(told.contains("certificate"), "{told}");
        let told = fail(status().chain(["--etcd", &url]));
        assert!(told.contains("--etcd-ca"), "{told}");
        let missing = format!("{ca}.none");
        let told = fail(status().chain(["--etcd", &url, "--etcd-ca", &missing]));
        assert!(told.contains("cannot read") && told.contains(&missing), "{told}");
        let told = fail(status().chain(["--etcd", "http://127.0.0.1:1", "--etcd-ca", &ca]));
        assert!(told.contains("https://"), "{told}");
        let told = fail(status().chain(["--etcd-user", "root"]));
        assert!(told.contains("REMORA_ETCD_PASSWORD"), "{told}");
    }

    /// Changes what a group agrees on, in etcd.
    fn amend(etcd: &crate::member::Etcd, cluster: &str, change: impl Fn(&mut Value)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let done = runtime.block_on(async {
            let mut client = etcd_client::Client::connect(&etcd.endpoints, None).await?;
            let below = Some(etcd_client::GetOptions::new().with_prefix());
            let there = client.get(format!("/remora/{cluster}/"), below).await?;
            let is_it = |pair: &&etcd_client::KeyValue| pair.key().ends_with(b"/group");
            let pair = there.kvs().iter().find(is_it).expect("what the group agrees on");
            let mut agreed: Value = serde_json::from_slice(pair.value()).unwrap();
            change(&mut agreed);
            client.put(pair.key(), agreed.to_string(), None).await
        });
        done.unwrap();
    }

    /// A node of another version meets a group that works: it says so and ends, and the group does
    /// not notice.
    #[test]
    fn a_node_of_another_version_does_not_join() {
        if !installed(&[("etcd", "etcd-server")]) {
            return;
        }
        let etcd = crate::member::Etcd::start();
        let urls = etcd.endpoints.join(",");
        let serve = ["store", "serve", "--json", "--until-eof", "--memory", "64M", "--nodes", "1"];
        let which = ["--redis", "127.0.0.1:0", "--cluster", "mixed", "--etcd", &urls];
        let serve = [&serve[..], &which].concat();
        let (child, ready) = begin(&serve);
        let front = ready["redis"][0].as_str().unwrap().to_owned();
        until("it serves", || redis(&front, "SET foo 1") == ["+OK"]);
        // As if the group were of a version to come.
        amend(&etcd, "mixed", |agreed| agreed["version"] = 900.into());
        let told = fail(&serve);
        assert!(told.contains("version 900") && told.contains("from one release"), "{told}");
        // What cannot be understood at all is told, too.
        amend(&etcd, "mixed", |agreed| *agreed = Value::Null);
        let told = fail(&serve);
        assert!(told.contains("written by another version"), "{told}");
        assert_eq!(redis(&front, "GET foo"), ["$1", "1"]);
        end(child);
    }

    #[test]
    fn what_cannot_be_asked_is_told_in_words() {
        // Nobody has this port of an address of loopback that is this test's.
        let [a, b, c, d] = crate::support::address();
        let etcd = format!("http://{a}.{b}.{c}.{d}:2379");
        let told = fail(["store", "cluster", "status", "orders", "--etcd", &etcd]);
        assert!(told.contains(&etcd) && told.contains("is it running"), "{told}");
        let serve = ["store", "serve", "--cluster", "orders", "--etcd", &etcd];
        assert!(fail(serve).contains("--redis"));
        let told = fail(serve.into_iter().chain(["--redis", "0"]));
        assert!(told.contains("joining the group") && told.contains(&etcd), "{told}");
        let space = ["--redis", "0", "--tablespace", "orders:1M"];
        let told = fail(serve.into_iter().chain(space));
        assert!(told.contains("--tablespace orders") && told.contains("db0"), "{told}");
        assert!(fail(["store", "serve", "--etcd", &etcd]).contains("--cluster NAME"));
        let told = fail(["store", "cluster", "status", "a/b", "--etcd", &etcd]);
        assert!(told.contains("no name for a cluster"), "{told}");
    }
}
