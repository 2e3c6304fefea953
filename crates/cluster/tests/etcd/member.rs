//! etcd's members, in a directory of their own, at a loopback address of their own.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{
    Certificate, Client, ConnectOptions, Identity, Permission, PermissionType, TlsOptions,
};
use remora_cluster::etcd::{EtcdGroup, EtcdTls, overview};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// How many there are at most.
const MEMBERS_MAX: u16 = 3;
/// How long they may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);

/// Some members of etcd. Dropping them ends them.
pub(crate) struct Etcd {
    members: Vec<Option<Child>>,
    directory: PathBuf,
    host: String,
    /// The first of its ports.
    port: u16,
    /// Which etcd and its client know each other by, if they do.
    certificates: Option<Certificates>,
    pub(crate) endpoints: Vec<String>,
}

/// Files of certificates and keys, each signed by the same authority.
pub(crate) struct Certificates {
    pub(crate) ca: PathBuf,
    pub(crate) server: Pair,
    pub(crate) client: Pair,
}

/// A certificate and its key.
pub(crate) struct Pair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Etcd {
    /// Three members, who trust everybody.
    pub(crate) fn start() -> Etcd {
        Etcd::begin(3, |_, _| None)
    }

    /// One member, which trusts everybody.
    pub(crate) fn start_alone() -> Etcd {
        Etcd::begin(1, |_, _| None)
    }

    /// One member, which takes clients with a certificate only, and shows one.
    pub(crate) fn start_with_certificates() -> Etcd {
        Etcd::begin(1, |folder, host| Some(Certificates::make(folder, host)))
    }

    fn begin(count: u16, make: impl FnOnce(&Path, &str) -> Option<Certificates>) -> Etcd {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(format!("remora-etcd-{pid}-{number}"));
        std::fs::create_dir_all(&directory).unwrap();
        // The ports begin with the usual ones, at an address that no other process of this machine
        // has. Its tests may run at the same time.
        let port = 2379 + 2 * MEMBERS_MAX * number;
        let host = format!("127.{}.{}.{}", 64 + (pid >> 16) % 128, pid >> 8 & 255, pid & 255);
        let certificates = make(&directory, &host);
        let scheme = if certificates.is_some() { "https" } else { "http" };
        let endpoint = |member| format!("{scheme}://{host}:{}", port + 2 * member);
        let endpoints = (0..count).map(endpoint).collect();
        let members = (0..count).map(|_| None).collect();
        let mut etcd = Etcd { members, directory, host, port, certificates, endpoints };
        (0..etcd.members.len()).for_each(|member| etcd.start_member(member));
        etcd.wait();
        etcd
    }

    /// Starts a member, with what it has on the disk, if it is not there.
    pub(crate) fn start_member(&mut self, member: usize) {
        if self.members[member].is_some() {
            return;
        }
        let port = |member: usize| usize::from(self.port) + 2 * member + 1;
        let peer = |member: usize| format!("http://{}:{}", self.host, port(member));
        let named = |member| format!("e{member}={}", peer(member));
        let all: Vec<_> = (0..self.members.len()).map(named).collect();
        let (url, peer) = (&self.endpoints[member], peer(member));
        let mut command = Command::new("etcd");
        command.args(["--name", &format!("e{member}"), "--data-dir"]);
        command.arg(self.directory.join(member.to_string()));
        command.args(["--listen-client-urls", url, "--advertise-client-urls", url]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &all.join(",")]);
        command.args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
        command.args(["--logger", "zap", "--log-level", "fatal"]);
        // Its tests' passwords are worth no effort.
        command.args(["--bcrypt-cost", "4"]);
        if let Some(Certificates { ca, server, .. }) = &self.certificates {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(ca);
            command.arg("--cert-file").arg(&server.certificate);
            command.arg("--key-file").arg(&server.key);
        }
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = quiet.spawn().expect("etcd, of Debian's package etcd-server, starts");
        self.members[member] = Some(started);
    }

    /// Ends a member at once, without a word to it.
    pub(crate) fn kill(&mut self, member: usize) {
        if let Some(mut process) = self.members[member].take() {
            // One that has ended by itself needs no end.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// All members go on, and those that are not there begin again.
    pub(crate) fn mend(&mut self) {
        self.signal(Signal::CONT);
        (0..self.members.len()).for_each(|member| self.start_member(member));
    }

    /// Sends the members that are there a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        (0..self.members.len()).for_each(|member| self.signal_one(member, signal));
    }

    /// Sends a member a signal, if it is there. One that is to stand still does so afterwards.
    pub(crate) fn signal_one(&self, member: usize, signal: Signal) {
        let Some(process) = &self.members[member] else { return };
        let pid = Pid::from_child(process);
        kill_process(pid, signal).unwrap();
        if signal == Signal::STOP {
            // Its threads go on until one of them has taken the signal. (NOWAIT: what is learned
            // here is there for others, too.)
            let what = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(pid), what).unwrap();
        }
    }

    /// Ends all members, with what they have on the disk, and starts them anew.
    pub(crate) fn forget(&mut self) {
        for member in 0..self.members.len() {
            self.kill(member);
            std::fs::remove_dir_all(self.directory.join(member.to_string())).unwrap();
        }
        self.mend();
    }

    /// A group in it, or a cluster.
    pub(crate) fn group(&self, name: &str) -> EtcdGroup {
        let read = |path: &PathBuf| std::fs::read(path).unwrap();
        let tls = self.certificates.as_ref().map(|Certificates { ca, client, .. }| EtcdTls {
            ca: read(ca),
            own: Some((read(&client.certificate), read(&client.key))),
        });
        EtcdGroup { tls, ..EtcdGroup::new(self.endpoints.clone(), name) }
    }

    pub(crate) fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("an etcd that was started with certificates")
    }

    /// Waits until the members answer.
    pub(crate) fn wait(&self) {
        let (group, start) = (self.group("trial"), Instant::now());
        while let Err(reason) = overview(&group) {
            assert!(start.elapsed() < PATIENCE, "{reason}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Has etcd ask for passwords: this user may see to the cluster's keys, and to no others.
pub(crate) fn ask_for_passwords(cluster: &EtcdGroup, (user, password): (&str, &str)) {
    let tls = cluster.tls.as_ref().map(|EtcdTls { ca, own }| {
        let (certificate, key) = own.as_ref().unwrap();
        TlsOptions::new()
            .ca_certificate(Certificate::from_pem(ca))
            .identity(Identity::from_pem(certificate, key))
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let done = runtime.block_on(async {
        let options = tls.map(|tls| ConnectOptions::new().with_tls(tls));
        let mut client = Client::connect(&cluster.endpoints, options).await?;
        let keys = format!("/remora/{}/", cluster.name);
        let permission = Permission::new(PermissionType::Readwrite, keys).with_prefix();
        client.user_add("root", "root", None).await?;
        client.user_grant_role("root", "root").await?;
        client.role_add("store").await?;
        client.role_grant_permission("store", permission).await?;
        client.user_add(user, password, None).await?;
        client.user_grant_role(user, "store").await?;
        client.auth_enable().await.map(|_| ())
    });
    done.unwrap();
}

impl Certificates {
    /// An authority, an etcd at this address, and a client.
    fn make(folder: &Path, host: &str) -> Certificates {
        let ca = Pair::make(folder, "ca", &["-subj", "/CN=authority"]);
        let signed = |name: &str, what: &str| {
            let (certificate, key) = (ca.certificate.to_str().unwrap(), ca.key.to_str().unwrap());
            let subject = format!("/CN={name}");
            let by = ["-CA", certificate, "-CAkey", key, "-subj", &subject];
            let uses = ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", what];
            Pair::make(folder, name, &[&by[..], &uses].concat())
        };
        let server = signed("etcd", &format!("subjectAltName=IP:{host}"));
        let client = signed("node", "extendedKeyUsage=clientAuth");
        Certificates { ca: ca.certificate, server, client }
    }
}

impl Pair {
    /// A key and a certificate for it, valid for two days.
    fn make(folder: &Path, name: &str, how: &[&str]) -> Pair {
        let [certificate, key] = ["pem", "key"].map(|end| folder.join(format!("{name}.{end}")));
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-noenc", "-days", "2", "-newkey", "ec"]);
        command.args(["-pkeyopt", "ec_paramgen_curve:P-256"]).args(how);
        command.arg("-out").arg(&certificate).arg("-keyout").arg(&key);
        let made = command.output().expect("openssl, of Debian's package openssl, starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Pair { certificate, key }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill(member));
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
