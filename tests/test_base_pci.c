// Tests where devices of the PCI bus are found to be, in machines that are made up.
#include "base/pci.h"
#include "sysfs_tree.h"

static void expect_cores(const char *root, const char *id, const char *expected) {
    Cores cores;
    Text text = {0};
    pci_cores(root, id, &cores);
    cores_print(&cores, &text);
    EXPECT(!strcmp(text_string(&text), expected), "%s has \"%s\", not \"%s\"", id, text_string(&text),
           expected);
    text_free(&text);
}

static void nodes(void) {
    const char *root = harness_path("nodes");
    tree_device(root, "pci0000:10/0000:10:00.0", "1", "4-7,12-15");
    tree_device(root, "pci0000:10/0000:11:00.0", "-1", "0-15"); // as Linux says it without a node
    tree_device(root, "pci0000:10/0000:12:00.0", NULL, "0-15");
    tree_device(root, "pci0000:10/0000:13:00.0", "0", NULL);
    tree_device(root, "pci0000:10/0000:14:00.0", "nothing", "0-15");
    EXPECT(pci_node(root, "0000:10:00.0") == 1, "node %d", pci_node(root, "0000:10:00.0"));
    EXPECT(pci_node(root, "0000:11:00.0") == -1, "node %d", pci_node(root, "0000:11:00.0"));
    EXPECT(pci_node(root, "0000:99:00.0") == -1, "a device that does not exist");
    EXPECT(pci_node(root, "") == -1, "a device without an address");
    expect_cores(root, "0000:10:00.0", "4-7,12-15");
    expect_cores(root, "0000:11:00.0", "");
    expect_cores(root, "0000:12:00.0", "");
    expect_cores(root, "0000:13:00.0", "");
    expect_cores(root, "0000:14:00.0", "");
    expect_cores(root, "0000:99:00.0", "");
    expect_cores("/nowhere", "0000:10:00.0", "");
}

static void expect_networks(const char *root, const char *id, PciNearness nearness, const char *expected) {
    Text text = {0};
    const PciNearness found = pci_networks(root, id, &text);
    EXPECT(found == nearness && !strcmp(text_string(&text), expected), "%s: \"%s\" (%s), not \"%s\"", id,
           text_string(&text), pci_nearness(found), expected);
    text_free(&text);
}

// Each GPU shares less with an interface than the one before it.
static void networks(void) {
    static const char deep[] = "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:01.0/0000:3e:00.0";
    const char *root = harness_path("networks");
    tree_device(root, "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.0", "0", "0-3");
    tree_device(root, "pci0000:3a/0000:3a:00.0/0000:3f:00.0", "0", "0-3");
    tree_device(root, "pci0000:3a/0000:3a:01.0/0000:40:00.0", "0", "0-3");
    tree_device(root, "pci0000:50/0000:50:00.0/0000:51:00.0", "0", "0-3");
    tree_device(root, "pci0000:60/0000:60:00.0/0000:61:00.0", "1", "4-7");
    tree_device(root, "pci0000:70/0000:70:00.0/0000:71:00.0", "-1", NULL);
    expect_networks(root, "0000:3d:00.0", PCI_FAR, ""); // there is no interface
    tree_device(root, deep, "0", "0-3");
    tree_device(root, "pci0000:3a/0000:3a:02.0/0000:45:00.0", "0", "0-3");
    tree_device(root, "pci0000:80/0000:80:00.0/0000:81:00.0", "-1", NULL);
    tree_network(root, "net", "eth1", deep);
    tree_network(root, "net", "eth0", "pci0000:3a/0000:3a:02.0/0000:45:00.0");
    tree_network(root, "net", "wlan0", "pci0000:80/0000:80:00.0/0000:81:00.0");
    tree_network(root, "infiniband", "mlx5_0", deep);
    tree_write(root, "1", "class/net/lo/flags"); // an interface without a device
    expect_networks(root, "0000:3d:00.0", PCI_SAME_PORT, "mlx5_0, eth1");
    expect_networks(root, "0000:3f:00.0", PCI_SAME_PORT, "mlx5_0, eth1");
    expect_networks(root, "0000:40:00.0", PCI_SAME_BRIDGE, "mlx5_0, eth0, eth1");
    expect_networks(root, "0000:51:00.0", PCI_SAME_NODE, "mlx5_0, eth0, eth1");
    expect_networks(root, "0000:61:00.0", PCI_FAR, "");
    expect_networks(root, "0000:71:00.0", PCI_FAR, ""); // two that have no node are not on the same
    expect_networks(root, "0000:99:00.0", PCI_FAR, "");
    // One of the same switch is nearer than one of the same port.
    tree_device(root, "pci0000:3a/0000:3a:00.0/0000:3f:00.1", "0", "0-3");
    tree_network(root, "net", "eth2", "pci0000:3a/0000:3a:00.0/0000:3f:00.1");
    expect_networks(root, "0000:3d:00.0", PCI_SAME_PORT, "mlx5_0, eth1");
    expect_networks(root, "0000:3f:00.0", PCI_SAME_PORT, "mlx5_0, eth1, eth2");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"nodes", nodes}, {"networks", networks}, {0}}, argc, argv);
}
