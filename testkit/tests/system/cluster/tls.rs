//! Brokers that speak TLS with etcd, both sides with certificates.

use std::time::Duration;

use corelane_client::Record;
use corelane_testkit::{Cluster, TestDir, has_openssl, make_certificate, skip};

use super::{cli, client, count, create_and_publish, has_etcd, publishes_to};
use crate::support::{eventually, soon};

#[tokio::test(flavor = "multi_thread")]
async fn brokers_and_groups_work_over_tls_and_a_certificate_of_another_ca_is_named() {
    let test = "brokers_and_groups_work_over_tls_and_a_certificate_of_another_ca_is_named";
    if !has_openssl() {
        return skip(test, "no openssl");
    }
    if !has_etcd(test) {
        return;
    }
    let dir = TestDir::new("tls");
    let [ca, certificate, key] = make_certificate(dir.path(), "ca", "server");
    let mut cluster = Cluster::start_with_tls(2, [&ca, &certificate, &key]);
    let through = client(&cluster, 1).await;
    create_and_publish(&through, "views", 2).await;
    let mut member = through.group("readers").topic("views").build().expect("a member");
    for _ in 0..6 {
        soon("a message", member.next()).await.expect("the stream goes on").expect("a message");
    }
    soon("the commit", member.commit()).await.expect("committed");
    // A watch, a lease and a keep-alive that begin anew over it.
    cluster.etcd_mut().restart();
    eventually("topics to be created again", async || {
        cli(&cluster, 2, &["topic", "create", "made-since", "--if-not-exists"]).status.success()
    })
    .await;
    assert!(publishes_to(&client(&cluster, 2).await, "views", 0).await);
    soon("a message", member.next()).await.expect("the stream goes on").expect("a message");
    soon("the end", member.close()).await.expect("committed and left");
    let producer = through.producer().build().expect("a producer");
    let sent = Box::pin(producer.send(Record::to("views").partition(1).value(b"the last one"))).await;
    soon("an acknowledgement", sent.expect("taken")).await.expect("acknowledged");
    assert_eq!(count(&through, "views").await, 8);

    // One whose certificate another CA signed: it is not let in, and its log says why.
    let other = TestDir::new("other-tls");
    let [_, certificate, key] = make_certificate(other.path(), "other-ca", "stranger");
    let [certificate, key] = [&certificate, &key].map(|path| path.display().to_string());
    // The end of the connection may overtake the alert that says why: then the next one is told.
    let is_named = (0..5).any(|_| {
        let refused = cluster.try_start_as(2, |options| {
            let as_another = ["--broker-id", "3", "--etcd-cert", &certificate, "--etcd-key", &key];
            options.args(as_another).ready_within(Duration::from_secs(8))
        });
        let failure = refused.expect_err("a broker that nobody knows, on an etcd that does not let it in");
        failure.stderr.to_lowercase().contains("certificate")
    });
    assert!(is_named, "no refusal names the certificate");
}
