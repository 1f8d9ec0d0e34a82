/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/own_address.c: an address of this machine for other machines. */
#include "parallel/store/own_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "parallel/store/store.h"

/* Writes the numeric form. False: not an address that other machines can use. */
static bool write_address(char out[OWN_ADDRESS_BYTES], const struct sockaddr *address)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
    if (address == NULL)
        return false;
    if (address->sa_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 != IN_LOOPBACKNET && v4->sin_addr.s_addr != INADDR_ANY
               && inet_ntop(AF_INET, &v4->sin_addr, out, OWN_ADDRESS_BYTES) != NULL;
    return address->sa_family == AF_INET6 && !IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr)
           && !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) && !IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr)
           && inet_ntop(AF_INET6, &v6->sin6_addr, out, OWN_ADDRESS_BYTES) != NULL;
}

/* Finds an address of an interface that is up: `wanted`, or, if that is NULL, the first of the family. */
static bool find_interface(char out[OWN_ADDRESS_BYTES], const struct ifaddrs *list, const char *wanted, int family)
{
    for (const struct ifaddrs *at = list; at != NULL; at = at->ifa_next) {
        char text[OWN_ADDRESS_BYTES];
        if (!(at->ifa_flags & IFF_UP) || (at->ifa_flags & IFF_LOOPBACK) || !write_address(text, at->ifa_addr)
            || (wanted != NULL ? strcmp(text, wanted) != 0 : at->ifa_addr->sa_family != family))
            continue;
        strcpy(out, text);
        return true;
    }
    return false;
}

static bool find_name(char out[OWN_ADDRESS_BYTES], const struct ifaddrs *interfaces, const char *name)
{
    struct addrinfo *list = NULL;
    bool found = false;
    if (store_resolve(&list, name, 0, false) != 0)
        return false;
    for (const struct addrinfo *at = list; at != NULL && !found; at = at->ai_next) {
        char text[OWN_ADDRESS_BYTES];
        found = write_address(text, at->ai_addr) && find_interface(out, interfaces, text, 0);
    }
    freeaddrinfo(list);
    return found;
}

/* Connecting a UDP socket chooses the address of this end and sends nothing. */
static bool find_route(char out[OWN_ADDRESS_BYTES])
{
    struct sockaddr_in other = { .sin_family = AF_INET, .sin_port = htons(9) }, own;
    socklen_t bytes = sizeof own;
    const int fd = fd_above_stdio(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    inet_pton(AF_INET, "192.0.2.1", &other.sin_addr);           /* RFC 5737: an address that no host has */
    const bool found = fd >= 0 && connect(fd, (struct sockaddr *)&other, sizeof other) == 0
                       && getsockname(fd, (struct sockaddr *)&own, &bytes) == 0
                       && write_address(out, (struct sockaddr *)&own);
    if (fd >= 0)
        close(fd);
    return found;
}

void own_address(char out[OWN_ADDRESS_BYTES], const char *name)
{
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) != 0)
        list = NULL;
    if (!find_name(out, list, name) && !find_route(out) && !find_interface(out, list, NULL, AF_INET)
        && !find_interface(out, list, NULL, AF_INET6))
        strcpy(out, "127.0.0.1");
    if (list != NULL)
        freeifaddrs(list);
}
